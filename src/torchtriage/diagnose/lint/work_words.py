"""Names of work that is costly, gives the same for the same, or changes something."""

import re

from torchtriage.diagnose.lint.torch_names import words

COSTLY = 10
"""Weight from which work is worth a line: a search, product, sort, fit or loop over elements. Light work weighs 1."""

HEAVY = words("""
    matmul mm bmm einsum tensordot kron outer cdist pairwise_distances pdist inv inverse pinv svd eig eigh eigvals
    qr cholesky solve lstsq slogdet matrix_exp matrix_power expm sort argsort topk unique median quantile percentile
    nanmedian histogram histc bincount meshgrid block_diag fft ifft rfft irfft fft2 stft conv1d conv2d conv3d
    convolve correlate cov corrcoef interpolate resize fit fit_transform transform kneighbors kneighbors_graph
    to_dense cumsum searchsorted mel melscale_fbanks create_dct chroma adjacency_matrix shortest_path cKDTree KDTree
    tokenize word_tokenize encode batch_encode_plus
""")
_CURVES = words("sin cos tan exp log log2 log10 log1p pow sigmoid tanh softmax logsumexp norm std var")
_CHEAP = words("""
    to cpu cuda float half double int long bool type dtype view reshape flatten squeeze unsqueeze expand expand_as
    permute transpose contiguous size dim numel item tolist numpy detach empty zeros ones full zeros_like ones_like
    empty_like full_like tensor as_tensor from_numpy asarray device shape eye arange keys values items get split join
    strip lower upper format clone index_select Size finfo iinfo is_tensor isinstance len range zip enumerate sqrt
""")
PURE_METHODS = words("""
    abs all any amax amin argmax argmin argsort astype bfloat16 ceil chunk clamp clamp_min clamp_max clip clone
    contiguous copy cos count cpu cuda cumprod cumsum detach diag diagonal diff dim div dot double endswith eq exp
    expand expand_as eye flatten flip float floor format ge get gt half index_select int inverse item items join keys
    kneighbors le log long lower lstrip lt masked_fill matmul max mean median min mm mul ne new_full new_ones
    new_tensor new_zeros nonzero norm numel numpy outer permute pow prod quantile ravel repeat repeat_interleave
    replace reshape reciprocal round rsplit rstrip rsqrt scatter sigmoid sin size softmax sort split sqrt square squeeze
    startswith std strip sub sum svd t tanh tile title to tolist topk transpose tril triu type type_as unfold unique
    unsqueeze upper values var view view_as where zfill to_dense to_sparse add gather bmm
""")
ESTIMATES = words("fit fit_transform transform predict kneighbors kneighbors_graph")
PARTS = words("parameters named_parameters modules named_modules children buffers state_dict")
MUTATORS = words("""
    append extend insert pop popleft appendleft remove clear update setdefault add discard sort reverse put
    fill fill_diagonal resize load_state_dict add_edge add_edges_from add_node add_nodes_from
""")
PURE_BUILTINS = words("""
    abs all any bool complex dict divmod enumerate filter float frozenset getattr hasattr int isinstance len list map
    max min pow range reversed round set slice sorted str sum tuple type zip repr ord chr callable
""")
PURE_LIBRARY = re.compile(
    r"(torch\.(?!cuda|distributed|load|save|manual_seed|seed|set_|get_|utils|optim|jit|compile|nn\.(?!functional)|hub"
    r"|Generator|multiprocessing|profiler|autograd|backends|no_grad|inference_mode|autocast|amp|ops|_)"
    r"|numpy\.(?!random|load|save|fromfile|loadtxt|genfromtxt|memmap|put|copyto|fill)"
    r"|math\.|scipy\.|itertools\.|operator\.|einops\.(re|ein)|librosa\.(?!load)"
    r"|torchaudio\.functional\.|sklearn\.(preprocessing|neighbors|metrics|decomposition|feature_extraction)\."
    r"|networkx\.|cv2\.(get|create)|skimage\.(filters|morphology)\.|torch_geometric\.(nn|utils)\.|torch_cluster\."
    r"|collections\.(Counter|OrderedDict)|functools\.reduce)"
)
RANDOM = re.compile(
    r"rand|shuffle|(^|[._])sample|multinomial|normal(_|$)|bernoulli|dropout|choice|permutation|default_rng|Generator"
    r"|uniform|poisson|integers|seed|empty$"
)
SETTINGS = words("config cfg args hparams opt options settings params device dtype")
CACHES = re.compile(r"(^|\.)(lru_cache|cache|cached|memoize|cached_property|property)$|cache")
MEASURES = re.compile(r"warm|bench|(^|_)tim(e|ing|eit)|latency|throughput|profil|repeat|repetition|(^|_)reps?(_|$)")
LOADS = re.compile(r"(^|\.)(\w*Dataset)$")
TOKENIZER = re.compile(r"(^|[._])(tok|tokenizer|tokenize|vectorizer|word_tokenize)$")


def weight(name: str, attr: str) -> int:
    """Return what a call of a library weighs, by its whole name and the last word of it."""
    if name.startswith("math."):
        return 0
    if attr in HEAVY:
        return COSTLY
    if attr in _CHEAP:
        return 0
    return 2 if attr in _CURVES else 1
