//! Tokens of JSON text: strictly what the grammar allows, everything else is [`Odd`].
//!
//! A text is a slice whose last [`PADDING`] bytes are zero and no part of it. A zero byte ends every
//! token and every gap, so positions never pass the first of them and no function needs to ask
//! whether the text goes on.

/// How many zero bytes follow the text.
pub const PADDING: usize = 64;

/// What stands here is not ours to judge: damaged, cut short, or merely unusual.
#[derive(Debug, PartialEq, Eq)]
pub struct Odd;

pub type Found<T> = Result<T, Odd>;

/// Nesting of values beyond this is left to others; real arguments nest three deep.
const MAX_DEPTH: u32 = 64;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    #[default]
    Missing,
    /// A string that stands for itself.
    Plain,
    /// A string with escapes.
    Escaped,
    Number,
    Null,
    Bool,
    Nested,
}

/// A value's place in the text; a string's without its quotes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Span {
    pub start: u32,
    pub end: u32,
    pub kind: Kind,
}

impl Span {
    #[inline(always)]
    pub fn of<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        &text[self.start as usize..self.end as usize]
    }

    /// The value as written, quotes included.
    #[inline(always)]
    pub fn raw<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        let quote = usize::from(matches!(self.kind, Kind::Plain | Kind::Escaped));
        if self.kind == Kind::Missing {
            return &[];
        }
        &text[self.start as usize - quote..self.end as usize + quote]
    }
}

#[inline(always)]
pub fn at(text: &[u8], i: usize) -> u8 {
    debug_assert!(i < text.len());
    // SAFETY: positions stop at the first byte of the padding, and look at most at the next few.
    // Bounds checks here cost a tenth of the whole scan.
    unsafe { *text.get_unchecked(i) }
}

/// Eight bytes as a number, the first one lowest.
#[inline(always)]
pub fn word(text: &[u8], i: usize) -> u64 {
    debug_assert!(i + 8 <= text.len());
    // SAFETY: as above; the padding is longer than what is read here.
    unsafe { text.as_ptr().add(i).cast::<u64>().read_unaligned().to_le() }
}

/// Move past white space.
#[inline(always)]
pub fn skip_gap(text: &[u8], mut i: usize) -> usize {
    if at(text, i) > b' ' {
        return i;
    }
    if at(text, i) == b' ' && at(text, i + 1) > b' ' {
        return i + 1;
    }
    loop {
        let n = simd::gap(text, i);
        i += n;
        if n < simd::WIDTH {
            return i;
        }
    }
}

#[inline(always)]
pub fn expect(text: &[u8], i: usize, byte: u8) -> Found<usize> {
    if at(text, i) == byte {
        Ok(i + 1)
    } else {
        Err(Odd)
    }
}

/// Read the string whose opening quote stands before `start`; return it and what follows it.
#[inline(always)]
pub fn string(text: &[u8], start: usize) -> Found<(Span, usize)> {
    let mut i = start;
    let mut kind = Kind::Plain;
    let mut high = false;
    loop {
        let (n, beyond_ascii) = simd::plain(text, i);
        high |= beyond_ascii;
        i += n;
        if n == simd::WIDTH {
            continue;
        }
        match at(text, i) {
            b'"' => break,
            b'\\' => {
                i = escape(text, i)?;
                kind = Kind::Escaped;
            }
            _ => return Err(Odd),
        }
    }
    if high && std::str::from_utf8(&text[start..i]).is_err() {
        return Err(Odd);
    }
    Ok((Span { start: start as u32, end: i as u32, kind }, i + 1))
}

/// Return what follows the escape at `i`.
#[inline(never)]
fn escape(text: &[u8], i: usize) -> Found<usize> {
    match at(text, i + 1) {
        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Ok(i + 2),
        b'u' => match hex(text, i + 2)? {
            0xD800..=0xDBFF => {
                if at(text, i + 6) != b'\\' || at(text, i + 7) != b'u' {
                    return Err(Odd);
                }
                match hex(text, i + 8)? {
                    0xDC00..=0xDFFF => Ok(i + 12),
                    _ => Err(Odd),
                }
            }
            0xDC00..=0xDFFF => Err(Odd),
            _ => Ok(i + 6),
        },
        _ => Err(Odd),
    }
}

fn hex(text: &[u8], i: usize) -> Found<u32> {
    let mut value = 0;
    for k in 0..4 {
        let digit = (at(text, i + k) as char).to_digit(16).ok_or(Odd)?;
        value = value << 4 | digit;
    }
    Ok(value)
}

/// Append what an escaped string stands for; the string has been read by [`string`].
pub fn unescape(escaped: &[u8], out: &mut Vec<u8>) -> Found<()> {
    let mut rest = escaped;
    while let Some(n) = rest.iter().position(|&byte| byte == b'\\') {
        out.extend_from_slice(&rest[..n]);
        rest = &rest[n + 1..];
        let (&kind, after) = rest.split_first().ok_or(Odd)?;
        rest = after;
        let byte = match kind {
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                let mut code = hex_of(rest)?;
                rest = &rest[4..];
                if (0xD800..0xDC00).contains(&code) {
                    let low = hex_of(rest.get(2..).ok_or(Odd)?)?;
                    code = 0x10000 + ((code - 0xD800) << 10) + low.wrapping_sub(0xDC00);
                    rest = &rest[6..];
                }
                let letter = char::from_u32(code).ok_or(Odd)?;
                out.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
                continue;
            }
            other => other,
        };
        out.push(byte);
    }
    out.extend_from_slice(rest);
    Ok(())
}

fn hex_of(digits: &[u8]) -> Found<u32> {
    let digits = std::str::from_utf8(digits.get(..4).ok_or(Odd)?).map_err(|_| Odd)?;
    u32::from_str_radix(digits, 16).map_err(|_| Odd)
}

/// A number as written; `value` is its whole part unless that has more than 18 digits.
#[derive(Clone, Copy, Debug)]
pub struct Number {
    pub negative: bool,
    pub whole: u64,
    pub n_whole: u32,
    /// The decimals, unless they are more than three.
    pub thousandths: u32,
    pub n_decimals: u32,
    pub has_exponent: bool,
}

const TENS: [u64; 9] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];

/// Return the value of the digits from `i` on, at most eight, and how many they are.
#[inline(always)]
fn digits(text: &[u8], i: usize) -> (u64, usize) {
    let values = word(text, i) ^ 0x3030_3030_3030_3030;
    // above nine a byte's highest bit gets set; sums carry into later bytes only
    let others = (values.wrapping_add(0x7676_7676_7676_7676) | values) & 0x8080_8080_8080_8080;
    let n = (others.trailing_zeros() / 8) as usize;
    if n == 0 {
        return (0, 0);
    }
    // what is no digit falls out, and zeros come before the others
    let values = values << (64 - 8 * n);
    // pairs, fours, all eight
    let values = (values.wrapping_mul(10 << 8 | 1) >> 8) & 0x00FF_00FF_00FF_00FF;
    let values = (values.wrapping_mul(100 << 16 | 1) >> 16) & 0x0000_FFFF_0000_FFFF;
    (values.wrapping_mul(10_000 << 32 | 1) >> 32, n)
}

/// Read a number; what follows it is up to the caller to judge.
#[inline(always)]
pub fn number(text: &[u8], start: usize) -> Found<(Number, usize)> {
    let mut i = start;
    let negative = at(text, i) == b'-';
    i += usize::from(negative);
    let first = i;
    let (mut whole, mut n) = digits(text, i);
    i += n;
    while n == 8 {
        let more;
        (more, n) = digits(text, i);
        whole = whole.wrapping_mul(TENS[n]).wrapping_add(more);
        i += n;
    }
    let n_whole = i - first;
    if n_whole == 0 || (at(text, first) == b'0' && n_whole > 1) {
        return Err(Odd);
    }
    let mut thousandths = 0;
    let mut n_decimals = 0;
    if at(text, i) == b'.' {
        i += 1;
        let first = i;
        let (decimals, mut n) = digits(text, i);
        if n == 0 {
            return Err(Odd);
        }
        i += n;
        while n == 8 {
            n = digits(text, i).1;
            i += n;
        }
        n_decimals = i - first;
        // more than three decimals are read by others, from the text
        thousandths = if n_decimals > 3 { 0 } else { (decimals * TENS[3 - n_decimals]) as u32 };
    }
    let has_exponent = at(text, i) | 0x20 == b'e';
    if has_exponent {
        i += 1;
        i += usize::from(matches!(at(text, i), b'+' | b'-'));
        if !at(text, i).is_ascii_digit() {
            return Err(Odd);
        }
        while at(text, i).is_ascii_digit() {
            i += 1;
        }
    }
    let found = Number {
        negative,
        whole,
        n_whole: n_whole.min(u32::MAX as usize) as u32,
        thousandths,
        n_decimals: n_decimals.min(u32::MAX as usize) as u32,
        has_exponent,
    };
    Ok((found, i))
}

/// Move past a number without looking at its value.
#[inline(always)]
fn skip_number(text: &[u8], start: usize) -> Found<usize> {
    let mut i = start + usize::from(at(text, start) == b'-');
    let first = i;
    while at(text, i).is_ascii_digit() {
        i += 1;
    }
    if i == first || (at(text, first) == b'0' && i - first > 1) {
        return Err(Odd);
    }
    match at(text, i) {
        b'.' | b'e' | b'E' => Ok(number(text, start)?.1),
        _ => Ok(i),
    }
}

fn literal(text: &[u8], i: usize, word: &[u8]) -> Found<usize> {
    if text[i..].starts_with(word) {
        Ok(i + word.len())
    } else {
        Err(Odd)
    }
}

/// Read any value; return its place and what follows it.
#[inline(always)]
pub fn value(text: &[u8], i: usize) -> Found<(Span, usize)> {
    let (kind, end) = match at(text, i) {
        b'"' => return string(text, i + 1),
        b'-' | b'0'..=b'9' => (Kind::Number, skip_number(text, i)?),
        b'{' | b'[' => (Kind::Nested, nested(text, i)?),
        b't' => (Kind::Bool, literal(text, i, b"true")?),
        b'f' => (Kind::Bool, literal(text, i, b"false")?),
        b'n' => (Kind::Null, literal(text, i, b"null")?),
        _ => return Err(Odd),
    };
    Ok((Span { start: i as u32, end: end as u32, kind }, end))
}

/// Return what follows the array or object at `start`.
#[inline(never)]
fn nested(text: &[u8], start: usize) -> Found<usize> {
    let mut i = start;
    // one bit per open bracket, the innermost lowest: 1 for an object
    let mut open = 0u64;
    let mut depth = 0u32;
    'value: loop {
        match at(text, i) {
            b'[' => {
                open <<= 1;
                depth += 1;
                i = skip_gap(text, i + 1);
                if at(text, i) != b']' {
                    if depth == MAX_DEPTH {
                        return Err(Odd);
                    }
                    continue 'value;
                }
            }
            b'{' => {
                open = open << 1 | 1;
                depth += 1;
                i = skip_gap(text, i + 1);
                if at(text, i) != b'}' {
                    if depth == MAX_DEPTH {
                        return Err(Odd);
                    }
                    i = key(text, i)?;
                    continue 'value;
                }
            }
            b'"' => i = string(text, i + 1)?.1,
            b'-' | b'0'..=b'9' => i = skip_number(text, i)?,
            b't' => i = literal(text, i, b"true")?,
            b'f' => i = literal(text, i, b"false")?,
            b'n' => i = literal(text, i, b"null")?,
            _ => return Err(Odd),
        }
        loop {
            i = skip_gap(text, i);
            let in_object = open & 1 == 1;
            match at(text, i) {
                b',' => {
                    i = skip_gap(text, i + 1);
                    if in_object {
                        i = key(text, i)?;
                    }
                    continue 'value;
                }
                b']' if !in_object => {}
                b'}' if in_object => {}
                _ => return Err(Odd),
            }
            i += 1;
            open >>= 1;
            depth -= 1;
            if depth == 0 {
                return Ok(i);
            }
        }
    }
}

/// Move past a key and its colon to the value.
#[inline(always)]
fn key(text: &[u8], i: usize) -> Found<usize> {
    let i = expect(text, i, b'"')?;
    let i = string(text, i)?.1;
    colon(text, i)
}

/// Move past a colon and the white space around it.
#[inline(always)]
pub fn colon(text: &[u8], i: usize) -> Found<usize> {
    if at(text, i) == b':' && at(text, i + 1) == b' ' && at(text, i + 2) > b' ' {
        return Ok(i + 2);
    }
    let i = expect(text, skip_gap(text, i), b':')?;
    Ok(skip_gap(text, i))
}

#[cfg(target_arch = "x86_64")]
mod simd {
    //! Sixteen bytes at a time: every x86-64 processor has SSE2.
    use std::arch::x86_64::{
        __m128i, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_min_epu8, _mm_movemask_epi8, _mm_or_si128,
        _mm_set1_epi8,
    };

    pub const WIDTH: usize = 16;

    #[inline(always)]
    fn load(text: &[u8], i: usize) -> __m128i {
        debug_assert!(i + WIDTH <= text.len());
        // SAFETY: positions do not pass the first byte of the padding, which is longer than this.
        unsafe { _mm_loadu_si128(text.as_ptr().add(i).cast()) }
    }

    /// Return how many bytes from `i` on are white space, at most `WIDTH`.
    #[inline(always)]
    pub fn gap(text: &[u8], i: usize) -> usize {
        let bytes = load(text, i);
        // SAFETY: SSE2 is part of the architecture.
        let is_gap = unsafe {
            let spaces = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(b' ' as i8));
            let lines = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(b'\n' as i8));
            let returns = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(b'\r' as i8));
            let tabs = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(b'\t' as i8));
            let any = _mm_or_si128(_mm_or_si128(spaces, lines), _mm_or_si128(returns, tabs));
            _mm_movemask_epi8(any) as u32
        };
        (!is_gap).trailing_zeros() as usize
    }

    /// Return how many bytes from `i` on are plain text of a string, at most `WIDTH`, and whether
    /// any of them is beyond ASCII.
    #[inline(always)]
    pub fn plain(text: &[u8], i: usize) -> (usize, bool) {
        let bytes = load(text, i);
        // SAFETY: SSE2 is part of the architecture.
        let (special, high) = unsafe {
            let quotes = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(b'"' as i8));
            let strokes = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(b'\\' as i8));
            let controls = _mm_cmpeq_epi8(_mm_min_epu8(bytes, _mm_set1_epi8(0x1f)), bytes);
            let any = _mm_or_si128(_mm_or_si128(quotes, strokes), controls);
            (_mm_movemask_epi8(any) as u32, _mm_movemask_epi8(bytes) as u32)
        };
        let n = (special | 1 << WIDTH).trailing_zeros();
        (n as usize, high & ((1 << n) - 1) != 0)
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod simd {
    //! Eight bytes at a time, on any processor.
    use super::word;

    pub const WIDTH: usize = 8;
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHS: u64 = 0x8080_8080_8080_8080;

    /// Mark the bytes of `word` that are `byte`; exact up to and including the first.
    #[inline(always)]
    fn equal(word: u64, byte: u8) -> u64 {
        let zeros = word ^ (ONES * u64::from(byte));
        zeros.wrapping_sub(ONES) & !zeros & HIGHS
    }

    /// Return how many bytes from `i` on are white space, at most `WIDTH`.
    #[inline(always)]
    pub fn gap(text: &[u8], i: usize) -> usize {
        let mut n = 0;
        while n < WIDTH && matches!(super::at(text, i + n), b' ' | b'\n' | b'\r' | b'\t') {
            n += 1;
        }
        n
    }

    /// Return how many bytes from `i` on are plain text of a string, at most `WIDTH`, and whether
    /// any of them is beyond ASCII.
    #[inline(always)]
    pub fn plain(text: &[u8], i: usize) -> (usize, bool) {
        let bytes = word(text, i);
        let controls = bytes.wrapping_sub(ONES * 0x20) & !bytes & HIGHS;
        let special = equal(bytes, b'"') | equal(bytes, b'\\') | controls;
        let n = (special.trailing_zeros() / 8) as usize;
        let seen = if n == WIDTH { !0 } else { (1 << (8 * n)) - 1 };
        (n, bytes & HIGHS & seen != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn padded(text: &str) -> Vec<u8> {
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(text.len() + PADDING, 0);
        bytes
    }

    #[test]
    fn numbers_are_read_as_written() {
        for (text, whole, n_decimals, thousandths) in [
            ("0", 0, 0, 0),
            ("7,", 7, 0, 0),
            ("12345678", 12_345_678, 0, 0),
            ("123456789", 123_456_789, 0, 0),
            ("1695835078123456.789 ", 1_695_835_078_123_456, 3, 789),
            ("999999999999999999", 999_999_999_999_999_999, 0, 0),
            ("5.1", 5, 1, 100),
            ("5.01", 5, 2, 10),
            ("5.1234", 5, 4, 0),
            ("5.123456789012345678", 5, 18, 0),
        ] {
            let (found, end) = number(&padded(text), 0).unwrap();
            assert_eq!((found.whole, found.n_decimals), (whole, n_decimals), "{text}");
            assert_eq!(found.thousandths, thousandths, "{text}");
            assert_eq!(end, text.trim_end_matches([' ', ',']).len());
        }
        let (found, end) = number(&padded("-12.5e+10]"), 0).unwrap();
        assert!(found.negative && found.has_exponent && end == 9);
    }

    #[test]
    fn what_is_no_number_is_odd() {
        for text in ["", "-", "01", "-01", "1.", ".5", "1.e5", "1e", "1e+", "+1", "NaN", "x"] {
            assert_eq!(number(&padded(text), 0).map(|found| found.1), Err(Odd), "{text}");
            let text = padded(&format!("[{text}]"));
            assert!(value(&text, 0).is_err() || text[1] == b']');
        }
    }

    #[test]
    fn strings_of_any_length_end_at_their_quote() {
        for n in 0..70 {
            for odd in ["", "é", "😀", "\\\"", "\\u00e9", "\\ud83d\\ude00"] {
                let inner = format!("{}{odd}{}", "x".repeat(n), "y".repeat(n % 19));
                let text = padded(&format!("{inner}\" x"));
                let (span, end) = string(&text, 0).unwrap();
                assert_eq!(span.of(&text), inner.as_bytes());
                assert_eq!(end, inner.len() + 1);
                assert_eq!(span.kind == Kind::Escaped, odd.starts_with('\\'));
            }
        }
    }

    #[test]
    fn damaged_strings_are_odd() {
        for text in ["abc", "a\nb\"", "\\x\"", "\\u12g4\"", "\\ud800\"", "\\ude00\"", "\\\""] {
            assert!(string(&padded(text), 0).is_err(), "{text}");
        }
        let mut text = padded("abc\"");
        text[1] = 0xff;
        assert!(string(&text, 0).is_err());
    }

    #[test]
    fn escapes_say_what_json_says() {
        let mut out = Vec::new();
        unescape(br#"a\"\\\/\b\f\n\r\t\u0041\u00e9\ud83d\ude00"#, &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "a\"\\/\x08\x0c\n\r\tAé😀");
    }

    #[test]
    fn gaps_of_any_length() {
        for n in 0..70 {
            let text = padded(&format!("{}x", " \n\t\r".repeat(20)[..n].to_owned()));
            assert_eq!(skip_gap(&text, 0), n);
        }
    }

    #[test]
    fn values_nest() {
        for text in ["[]", "{}", "[[1, 2], {\"a\": [null, true]}]", "{\"a\" : {} , \"b\":-1.5}"] {
            let (span, end) = value(&padded(text), 0).unwrap();
            assert_eq!((span.kind, end), (Kind::Nested, text.len()), "{text}");
        }
        for text in ["[", "[1,]", "[1 2]", "{\"a\"}", "{\"a\":1,}", "{1:2}", "[}", "{]", "[nul]"] {
            assert!(value(&padded(text), 0).is_err(), "{text}");
        }
        let deep = |n: usize| "[".repeat(n) + &"]".repeat(n);
        assert!(value(&padded(&deep(64)), 0).is_ok());
        assert!(value(&padded(&deep(65)), 0).is_err());
        assert!(value(&padded(&"[".repeat(1_000_000)), 0).is_err());
    }
}
