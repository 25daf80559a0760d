"""The words that the names of PyTorch's own operators are made of (2.13)."""

_WORDS = """
abs absolute acceptable accumulate acos acosh activation adagrad adam adamw adaptive add addbmm addcdiv addcmul addmm
addmv addr addstatvalue adjoint affine airy alias aligned all allclose allgather allreduce alltoall along alpha amax
ambiguous amin aminmax amp and angle any append apply arange arccos arccosh arcsin arcsinh arctan arctanh argmax argmin
args argsort argwhere arithmetic asin asinh assert async atan atanh atleast attention autocast autograd autogradadd
autogradallnonzero autogradallzero autogradanynonzero autogradzero available avg awaitable axis backward baddbmm bag
bailout bailouttemplate barrier bartlett base batch bernoulli bessel bias bicubic bilinear bin binary bincount binomial
bit bitwise blackman block bmm bool broadcast broadcastmkldnntensors broadcastsizes bsc bsr bucketize buffer byte cache
cachemask can capability capitalize cartesian cast cat cauchy cbrt ccol cdist ceil cell celu center chain chalf channel
char chebyshev check choice cholesky choose chr chunk chunksizes circular clamp clear clip clone coalesce coalesced col
collapse column combination combinations compatible complex compleximplicit compress compressed compute concat
concatenate cond confirmed conj consecutive constant constantchunk constantmkldnntensor constrain contains contiguous
conv convert convolution coo copy copysign corrcoef cos cosh cosine count counts cov cpu cross crow csc cslt csr ctc
cts cuda cudnn cufft cummax cummaxmin cummin cumprod cumsum cumulative data debug default defaults deg degrees delete
dense dep depthwise dequantize derive det detach device diag diagflat diagonal dict diff differentiable
differentiablegraph digamma dilated dim dimi dims dimv dirichlet dispatch dist distance distributed div divide divmod
dot double draw dropout dsplit dstack dtype dtypes dual dummy dyn dynamic edges eff efficient efficientzerotensor eig
eigh eigvals eigvalsh einsum element elemt elu embed embedding empty enabled encoder endswith engine entr entropy enum
enumname enumvalue equal erf erfc erfcx erfinv errors euclidean exact example except exp expand expandtabs expit expm
exponential extend eye fabs factor factorial fake fallback fallbackgraph fbgemm feature fft fftfreq fftn fftshift file
fill filled find finite fix flash flatten flip fliplr flipud float floatimplicit floating floatlist floor floordiv fmax
fmin fmod fold foobar for foreach format forward frac fractional fresh frexp frobenius from full function functional
functorch fused fusedconcat fusiongroup fwd gamma gammainc gammaincc gammaln gather gcd gelu gemm generator geometric
geqrf ger get getitem glu grad gradient gradients greater grid group grouped gru guard half hamming hann hardshrink
hardsigmoid hardswish hardtanh has hash head heaviside helper here hermite hex hfft hfftn hinge histc histogram
histogramdd hot householder hsplit hspmm hstack huber hypot iand idx ifft ifftn ifftshift ifthenelse igamma igammac
ignoredpythonop ihfft ihfftn ilshift imag impl index indices infer inference infinitely info init initial initialize
inner inplace input insert instance int interface interleave internal interpolate intimplicit intlist into inv inverse
ior iota ipu irecv irfft irfftn irshift isalnum isalpha isclose isdecimal isdigit isend isfinite isidentifier isin
isinf islower isnan isneginf isnot isnumeric isposinf isprintable isreal isspace istft istitle isupper item items
itemsize ivalue ixor jagged join jvp kaiser kernel key keys kron kthvalue laguerre lanczos layer layout lazy lcm ldexp
ldl leaf leaky learnable left legendre legit len length lengths lerp less lgamma lift like linalg linear linspace list
ljust local log logaddexp logcumsumexp logdet logical logit logits logspace logsumexp long loss lower lshift lstm
lstrip lstsq maia make manual margin mask masked materialize math mathremainder matmul matrix max maximum mean median
mem memory meshgrid meta metadata min minimum miopen mish mixed mkldnn mkldnnclamp mkldnnhardsigmoid mkldnnhardswish
mkldnnhardtanh mkldnnlayernorm mkldnnscalarmul mmbatchside mmtreereduce mode modf modified modulecontainerindex
monitored moveaxis movedim moving mps mse msort mtia mul multi multigammaln multilabel multinomial multiple multiply
mvlgamma name nan nanmean nanmedian nanquantile nansum narrow native nbytes ncf ndtr ndtri nearest neg negative nested
new nextafter nll nnpack nnz noise non nonzero norm normal not nowait nuclear num numel numpy numtotensor obs oct
offset offsets one onednnfusiongroup onednnfusionguard ones only ops optimized optional ord orgqr ormqr out outer
output overlap overlapping overrideable owner pack packed pad padded pairwise parallel partition pdist per
percentformat permute permuted philox physical pin pinned pinv pinverse pixel plan point points poisson polar polygamma
polynomial pool pop popitem positive pow power powsum precision prelu prepack prepacked primal print prod product
profile projection promote propagate prune psi put pythonop qkv qparams qscheme quant quantile quantize quantized rad
radians ragged raiseexception rand randint randn random randperm range rangelist rank ranking ravel real reciprocal
record recv reduce reduced reduction reductionsizes reflection relu remainder remote remove renorm reorder repeat
replace replication repr requires requiresgradcheck rescale reshape resize resolve result retain retains rev reverse
rfft rfftfreq rfftn rfind right rindex rjust rms rnn roll rot round row rowwise rpartition rpc rrelu rshift rsplit
rsqrt rstrip rsub safe same sample sampled sampler saturate save scalar scalarimplicit scale scaled scales scatter
scramble scripting sdp search searchsorted seed segment select selecting selu semi send seqlen sequence serialization
set setdefault sgd sgn shallow shape shapes shift shifted short shuffle sigmoid sign signbit signed silu similarity sin
sinc single sinh sink size sizes slice slogdet slow smm smooth sobol soft softmax softplus softshrink solve sort sorted
source sparse spatial spdiags special spherical split splitlines spsolve sqrt square squeeze sspaddmm stack standard
startswith state static staticruntimecopyouts staticsubgraph stats std stft storage str stream stride strided strides
string stringindex strip structured sub subcmul subtract sum svd svdvals swapaxes swapcase swapdims sym sync take tan
tanh tbc tensor tensordot tensorexprdynamicgroup tensorexprdynamicguard tensorexprgroup tensorinv tensors tensorsolve
test thnn threshold tile timepoint title token tokens tolist topk torch trace tracing training transform transformer
transpose trapezoid trapz triangular tril trilinear triplet triton triu true trunc tupleindex tupleunpack type
typecheck types unbind unchecked unflatten unfold uniform uninitialized unique unpack unpool unsafe unscale unshuffle
unsqueeze unwrap update upper upsample use validate value values vander var varconcat varstack vdot vecdot vector
version view vsplit vstack vulkan wait warn weight weights where window with wrapped xla xlog xlogy xor xpu zero zeros
zerotensor zeta zfill
"""
OPERATOR_WORDS = frozenset(_WORDS.split())
"""Lower case, of three letters or more; a test asks PyTorch whether some are missing."""
