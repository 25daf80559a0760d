"""The reviewer that asks a language model, at any endpoint that speaks OpenAI's protocol.

Whatever the endpoint does, each window has an outcome: a review that could be checked, or the
reason why there is none. Money is reserved before a request is sent and settled by what was used;
a request for which there is no money waits for what others may leave.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from torchtriage.core.errors import MissingExtraError
from torchtriage.core.names import visible
from torchtriage.core.units import format_count
from torchtriage.core.whole_files import replacing
from torchtriage.learn.review import prompt
from torchtriage.learn.review.evidence import Evidence, count_tokens
from torchtriage.learn.review.reviewer import INTERRUPTED, NOT_STARTED, Outcome, RejectedError, check

OPENAI_URL = "https://api.openai.com/v1"
MAX_REASON = 300
MOST_TOKENS = 10**9
"""No request has as many: an endpoint that says so does not count."""

Message = dict[str, str]


@dataclass(frozen=True)
class Endpoint:
    """Who is asked. ``key`` : never shown, not in messages either; empty where none is needed."""

    model: str
    base_url: str = OPENAI_URL
    key: str = field(default="", repr=False)


@dataclass(frozen=True)
class Limits:
    """How long is waited for what, and how much is taken.

    ``silence_s`` : between two pieces of a reply. ``total_s`` : for one reply. ``longest_wait_s`` :
    before another attempt; an endpoint that asks for more is not asked again. ``attempts`` : for
    one window, answers that could not be taken included. ``max_reply_tokens`` : asked for;
    ``max_reply_bytes`` : read, whatever was asked for.
    """

    connect_s: float = 10.0
    silence_s: float = 60.0
    total_s: float = 240.0
    longest_wait_s: float = 60.0
    attempts: int = 5
    max_reply_tokens: int = 1500
    max_reply_bytes: int = 2_000_000
    at_once: int = 4


@dataclass(frozen=True)
class Prices:
    """What a million tokens cost, in any currency, and how much may be spent."""

    prompt: float
    reply: float
    most: float = float("inf")

    def of(self, prompt_tokens: int, reply_tokens: int) -> float:
        """Return what so many tokens cost."""
        return (prompt_tokens * self.prompt + reply_tokens * self.reply) * 1e-6


class _TransientError(Exception):
    """Another attempt may succeed. ``wait_s`` : what the endpoint asks for."""

    def __init__(self, reason: str, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


class _RefusedError(Exception):
    """No other attempt will help this window."""


class _StoppedError(Exception):
    """No attempt will help any window."""


@dataclass(frozen=True)
class _Reply:
    """What came back. ``usage`` : prompt and reply tokens, as the endpoint counts them."""

    text: str
    refusal: str = ""
    finish: str = ""
    usage: tuple[int, int] | None = None


class Llm:
    """Asks a model for the review of each window.

    ``prices`` : without them nothing is known of cost. ``cache`` : a folder of answers that were
    taken, by all that was asked. ``wait`` : waits for some seconds before another attempt. ``seed``
    : of the jitter of these waits.

    Raises MissingExtraError: the openai package is not installed.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        limits: Limits = Limits(),
        prices: Prices | None = None,
        cache: Path | None = None,
        wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
        seed: int | None = None,
    ) -> None:
        try:
            self._openai = import_module("openai")
        except ImportError as error:
            raise MissingExtraError(
                "asking a language model needs openai, which is not installed", hint="pip install 'torchtriage[llm]'"
            ) from error
        client = self._openai.DefaultAsyncHttpxClient
        # the HTTP library below the SDK, httpx or its successor
        below = next(item for item in client.__mro__ if item.__module__.startswith("httpx"))
        self._http = import_module(below.__module__.partition(".")[0])
        self.endpoint, self.limits, self.prices, self.cache = endpoint, limits, prices, cache
        self._wait = wait
        self.progress: Callable[[int, int], None] = lambda _place, _size: None
        """Receives the place of a window and how many characters of its reply are there."""
        self._chance = random.Random(seed)
        self._spent = self._reserved = 0.0
        self._under_way = 0
        self._settled = asyncio.Condition()
        self._stopped = ""
        self.problem = ""
        """What went wrong without harm to a review."""
        self._options: dict[str, Any] = {
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
            "max_completion_tokens": limits.max_reply_tokens,
            "response_format": "json_schema",
        }

    @property
    def name(self) -> str:
        """Who it is, for reports and for the history of labels."""
        return f"llm/{self.endpoint.model}"

    @property
    def spent(self) -> float | None:
        """What was paid so far, None without prices."""
        return self._spent if self.prices else None

    def notice(self, evidence: Sequence[Any]) -> str:
        """Return what will be sent, and where, for whoever is about to send it."""
        sent = [item for item in evidence if self._cached(item) is None]
        tokens = sum(self._prompt_tokens(self._messages(item)) for item in sent)
        raw = any(not item.redacted for item in sent)
        what = "with names, paths and messages as recorded" if raw else "names redacted"
        parts = [
            f"sends {self._sent} {format_count(len(sent), self.noun)}, about {tokens:,} tokens at one answer each, "
            f"{what}, to {self.endpoint.base_url}, model {self.endpoint.model}"
        ]
        if len(sent) < len(evidence):
            parts.append(f"{len(evidence) - len(sent)} are answered from the cache")
        if self.prices:
            cost = self.prices.of(tokens, len(sent) * self.limits.max_reply_tokens)
            parts.append(f"costs about {min(cost, self.prices.most):.4f}")
        return visible("; ".join(parts))

    def review_all(self, evidence: Sequence[Any], on_done: Callable[[int, Outcome], None]) -> tuple[Outcome, ...]:
        """Return an outcome for each window; what Ctrl-C leaves undone says so."""
        outcomes: dict[int, Outcome] = {}

        def done(place: int, outcome: Outcome) -> None:
            outcomes[place] = outcome
            on_done(place, outcome)

        reason = NOT_STARTED
        try:
            asyncio.run(self._review_all(evidence, done))
        except KeyboardInterrupt:
            reason = INTERRUPTED
        return tuple(outcomes.get(place) or Outcome(item, None, reason) for place, item in enumerate(evidence))

    async def _review_all(self, evidence: Sequence[Evidence], done: Callable[[int, Outcome], None]) -> None:
        limits = self.limits
        self._settled = asyncio.Condition()  # of this loop
        places = iter(range(len(evidence)))

        async def work(client: Any) -> None:
            for place in places:
                used = {"attempts": 0, "prompt_tokens": 0, "reply_tokens": 0}
                try:
                    outcome = await self._review(client, place, evidence[place], used)
                except Exception as error:  # whatever one window meets, the others are reviewed
                    reason = f"{type(error).__name__}: {error}"
                    outcome = Outcome(evidence[place], None, self._safe(reason), False, **used)
                done(place, outcome)

        timeout = self._openai.Timeout(limits.silence_s, connect=limits.connect_s)
        http = self._openai.DefaultAsyncHttpxClient(
            # another host than the one that was named must not get the evidence
            follow_redirects=False,
            timeout=timeout,
            event_hooks={"response": [self._bound]},
        )
        async with self._openai.AsyncOpenAI(
            api_key=self.endpoint.key or "none",
            base_url=self.endpoint.base_url,
            max_retries=0,
            timeout=timeout,
            http_client=http,
            default_headers={"Accept-Encoding": "identity"},
        ) as client:
            await asyncio.gather(*(work(client) for _ in range(min(limits.at_once, len(evidence)))))

    # -- what is asked, and what is taken: of a window here, of something else in a subclass

    noun = "window"
    _sent = "evidence of"

    def _messages(self, evidence: Any) -> list[Message]:
        return prompt.messages(evidence)

    def _schema(self, evidence: Any) -> dict[str, Any]:
        return prompt.reply_schema(evidence)

    def _check(self, answer: Any, evidence: Any) -> Any:
        return check(answer, evidence)

    # -- one window ------------------------------------------------------------------------

    async def _review(self, client: Any, place: int, evidence: Evidence, used: dict[str, int]) -> Outcome:
        known = self._cached(evidence)
        if known is not None:
            return Outcome(evidence, self._check(known, evidence), cached=True)
        asked = self._messages(evidence)
        sent, reason = list(asked), ""
        while used["attempts"] < self.limits.attempts:
            if self._stopped:
                return Outcome(evidence, None, self._stopped, False, **used)
            used["attempts"] += 1
            try:
                reply = await self._paid(client, place, evidence, sent, used)
                answer = _parse(reply)
                review = self._check(answer, evidence)
            except RejectedError as problem:
                # once more, with what was wrong; what the model wrote is not sent back to it
                reason = f"reply rejected: {problem}"
                if len(sent) > len(asked):
                    break
                sent = [*asked, prompt.again(problem.expected)]
            except _TransientError as problem:
                reason = str(problem)
                if used["attempts"] == self.limits.attempts:
                    break
                wait_s = self._backoff(used["attempts"], problem.wait_s)
                if wait_s is None:
                    reason += f", and asks to wait {problem.wait_s:,.0f} s"
                    break
                await self._wait(wait_s)
            except _StoppedError as problem:
                self._stopped = self._safe(str(problem))
            except _RefusedError as problem:
                reason = str(problem)
                break
            else:
                self._keep(evidence, answer)
                return Outcome(evidence, review, "", False, **used)
        return Outcome(evidence, None, self._safe(self._stopped or reason), False, **used)

    def _backoff(self, attempt: int, wanted_s: float | None) -> float | None:
        longest_s = self.limits.longest_wait_s
        if wanted_s is not None:
            jittered_s = wanted_s + self._chance.random()
            return jittered_s if wanted_s <= longest_s else None
        return min(2.0 ** (attempt - 1), longest_s) * self._chance.uniform(0.5, 1.0)

    async def _paid(
        self, client: Any, place: int, evidence: Evidence, sent: list[Message], used: dict[str, int]
    ) -> _Reply:
        most = self._prompt_tokens(sent), self.limits.max_reply_tokens
        reserved = await self._reserve(most)
        pieces: list[str] = []
        # a request that ended in nothing may have been worked on
        worst, tokens = most, (most[0], 0)
        try:
            reply = await self._asked(client, place, evidence, sent, pieces)
            worst = tokens = reply.usage or (most[0], count_tokens(reply.text))
            return reply
        except _Unworked as error:
            worst = tokens = 0, 0
            raise error.cause from error
        finally:
            if tokens is not worst:  # it broke off
                tokens = most[0], count_tokens("".join(pieces))
            async with self._settled:
                self._settled.notify_all()  # whatever comes of the sums; nobody wakes before them
                self._reserved -= reserved
                self._under_way -= 1
                used["prompt_tokens"] += tokens[0]
                used["reply_tokens"] += tokens[1]
                if self.prices:
                    self._spent += self.prices.of(*worst)

    async def _reserve(self, most: tuple[int, int]) -> float:
        """Set aside what a request can cost at most, once there is money for it.

        Raises _RefusedError: there is none, and no other request is under way that may leave some.
        """
        needed = self.prices.of(*most) if self.prices else 0.0
        limit = self.prices.most if self.prices else float("inf")

        def fits() -> bool:
            return self._spent + self._reserved + needed <= limit

        async with self._settled:
            await self._settled.wait_for(lambda: fits() or not self._under_way)
            if not fits():
                raise _RefusedError(
                    f"the cost cap of {limit:g}: {self._spent:.4f} is spent, "
                    f"and this {self.noun} could cost {needed:.4f}"
                )
            self._reserved += needed
            self._under_way += 1
        return needed

    async def _asked(
        self, client: Any, place: int, evidence: Evidence, sent: list[Message], pieces: list[str]
    ) -> _Reply:
        """Return a reply, and fill in its pieces as they come; what the endpoint does not know is left out."""
        for _ in range(len(self._options) + 1):
            options = dict(self._options)
            try:
                return await asyncio.wait_for(
                    self._send(client, place, evidence, sent, options, pieces), self.limits.total_s
                )
            except asyncio.TimeoutError as error:
                raise _TransientError(f"no reply within {self.limits.total_s:g} s") from error
            except (self._openai.APIConnectionError, self._http.HTTPError) as error:
                raise self._broken(error) from error
            except self._openai.APIStatusError as error:
                if not self._gives_way(error, options):
                    raise _Unworked(self._judged(error)) from error
            except self._openai.APIError as error:
                raise _TransientError(f"an error inside the reply: {error}") from error
            except _SilentError:
                self._options.pop("stream", None)
                self._options.pop("stream_options", None)
        raise _Unworked(_StoppedError("the endpoint refuses every form of the request"))

    async def _send(
        self,
        client: Any,
        place: int,
        evidence: Evidence,
        sent: list[Message],
        options: dict[str, Any],
        pieces: list[str],
    ) -> _Reply:
        form = options.pop("response_format", None)
        if form is not None:
            schema = {"name": "review", "strict": True, "schema": self._schema(evidence)}
            options["response_format"] = {"type": form, form: schema}
        answer = await client.chat.completions.create(model=self.endpoint.model, messages=sent, **options)
        if "stream" not in options:
            return _whole(answer)
        try:
            return await self._streamed(answer, place, pieces)
        finally:
            await answer.close()

    async def _streamed(self, chunks: AsyncIterator[Any], place: int, pieces: list[str]) -> _Reply:
        reply, size = _Reply(""), 0
        anything = False
        try:
            async for chunk in chunks:
                anything = True
                reply = replace(reply, usage=_usage(chunk) or reply.usage)
                for choice in getattr(chunk, "choices", None) or ():
                    delta = getattr(choice, "delta", None)
                    piece, refusal = _text(delta, "content"), _text(delta, "refusal")
                    pieces.append(piece)
                    size += len(piece)
                    reply = replace(
                        reply, refusal=reply.refusal + refusal, finish=_text(choice, "finish_reason") or reply.finish
                    )
                    self.progress(place, size)
        except (ValueError, TypeError, AttributeError) as error:  # no JSON, or of another form
            raise _TransientError(f"a piece of the reply cannot be read: {error}") from error
        if not anything:
            raise _SilentError
        return replace(reply, text="".join(pieces))

    # -- what endpoints say --------------------------------------------------------------------

    def _broken(self, error: Exception) -> Exception:
        """Return what a connection that failed means: before it was there, nothing was done."""
        cause = error
        while cause.__cause__ is not None and not isinstance(cause, _RefusedError):
            cause = cause.__cause__  # type: ignore[assignment]
            if isinstance(cause, self._http.HTTPError):
                break
        text = f"{type(cause).__name__} {cause}".strip()
        if isinstance(cause, _RefusedError):
            return cause
        if isinstance(cause, self._http.ConnectError | self._http.ConnectTimeout):
            return _Unworked(_TransientError(f"no connection: {text}"))
        if isinstance(cause, self._http.TimeoutException):
            return _TransientError(f"silent for {self.limits.silence_s:g} s")
        return _TransientError(f"the reply broke off: {text}")

    def _gives_way(self, error: Any, options: dict[str, Any]) -> bool:
        """Return whether the request can be sent again without what was refused."""
        if error.status_code not in (400, 404, 415, 422):
            return False
        text = str(error).lower()
        words = {
            "max_completion_tokens": ("max_completion_tokens",),
            "stream_options": ("stream_options", "include_usage"),
            "temperature": ("temperature",),
            "response_format": ("response_format", "json_schema", "schema", "grammar"),
        }
        refused = next(
            (name for name, known in words.items() if name in options and any(item in text for item in known)), None
        )
        if refused is None and error.status_code in (400, 422) and "response_format" in options:
            refused = "response_format"  # what endpoints know least
        if refused is None:
            return False
        if self._options.pop(refused, None) is not None and refused == "max_completion_tokens":
            self._options["max_tokens"] = self.limits.max_reply_tokens
        return True

    def _judged(self, error: Any) -> Exception:
        status = error.status_code
        text = f"HTTP {status}: {_message(error)}"
        if status == 429 and "insufficient_quota" in str(error):
            return _StoppedError(text)
        if status in (408, 409, 425, 429) or status >= 500:
            return _TransientError(text, _retry_after_s(error.response.headers))
        if status in (401, 402, 403, 404, 405) or 300 <= status < 400:
            return _StoppedError(text)
        return _RefusedError(text)

    async def _bound(self, response: Any) -> None:
        """Make a response end with an error when more of it comes than is taken."""
        coding = response.headers.get("content-encoding", "identity")
        if coding not in ("", "identity"):
            # a small body may unpack to any size
            raise _RefusedError(f"a reply packed by {coding}, which was not asked for")
        limit, inner = self.limits.max_reply_bytes, response.stream

        class Bounded(self._http.AsyncByteStream):  # type: ignore[misc, name-defined]
            async def __aiter__(self) -> AsyncIterator[bytes]:
                size = 0
                async for piece in inner:
                    size += len(piece)
                    if size > limit:
                        raise _RefusedError(f"a reply of more than {limit:,} bytes")
                    yield piece

            async def aclose(self) -> None:
                await inner.aclose()

        response.stream = Bounded()

    def _safe(self, reason: str) -> str:
        if self.endpoint.key:
            reason = reason.replace(self.endpoint.key, "***")
        return visible(re.sub(r"\s+", " ", reason))[:MAX_REASON]

    # -- money and memory ----------------------------------------------------------------------

    def _prompt_tokens(self, sent: list[Message]) -> int:
        return sum(count_tokens(item["content"]) + 8 for item in sent)

    def _place_of(self, evidence: Evidence) -> Path | None:
        if self.cache is None:
            return None
        asked = [self.endpoint.base_url, self.endpoint.model, self._messages(evidence)]
        data = json.dumps(asked).encode("utf-8", "backslashreplace")
        return self.cache / f"{hashlib.sha256(data).hexdigest()}.json"

    def _cached(self, evidence: Evidence) -> Any:
        path = self._place_of(evidence)
        if path is None:
            return None
        try:
            answer = json.loads(path.read_bytes())["answer"]
            self._check(answer, evidence)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return answer

    def _keep(self, evidence: Evidence, answer: Any) -> None:
        path = self._place_of(evidence)
        if path is None:
            return
        about = {"model": self.endpoint.model, "at": time.time(), "answer": answer}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as draft:
                draft.write_text(json.dumps(about), encoding="utf-8")
        except OSError as error:  # the review is there all the same
            self.problem = f"answers cannot be cached in {self.cache}: {error.strerror}"


class _SilentError(Exception):
    """A stream without a single piece."""


class _Unworked(Exception):  # noqa: N818 - carries an error that has a name
    """An endpoint did nothing that it could charge for."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


_THINKING = re.compile(r"<think>.*?(?:</think>|(?P<open>\Z))", re.DOTALL)


def _parse(reply: _Reply) -> Any:
    """Return the object in a reply.

    Raises _RefusedError: the model refuses, or was cut off; RejectedError: there is no object in
    it.
    """
    if reply.refusal or reply.finish == "content_filter":
        # what it says with it is anybody's words
        raise _RefusedError("the model refuses" if reply.refusal else "the model refuses: content filter")
    text = _THINKING.sub(lambda match: match[0] if match["open"] is not None else "", reply.text)
    begin = text.find("{")
    if not text.strip():
        if reply.finish == "length":
            raise _RefusedError("the reply was cut off before it began")
        raise RejectedError("expected an answer", "an empty reply")
    if begin < 0:
        raise RejectedError("expected a JSON object", repr(visible(text.strip()[:80])))
    try:
        answer, _ = json.JSONDecoder().raw_decode(text[begin:])
    except (ValueError, RecursionError) as error:
        if reply.finish == "length":
            raise _RefusedError("the reply was cut off at the most tokens asked for") from error
        raise RejectedError("expected a JSON object", type(error).__name__) from error
    return answer


def _whole(answer: Any) -> _Reply:
    for choice in getattr(answer, "choices", None) or ():
        message = getattr(choice, "message", None)
        return _Reply(
            _text(message, "content"), _text(message, "refusal"), _text(choice, "finish_reason"), _usage(answer)
        )
    return _Reply("", usage=_usage(answer))


def _text(holder: Any, name: str) -> str:
    """Return a field that should be text; endpoints send what they like."""
    value = getattr(holder, name, None)
    return value if isinstance(value, str) else ""


def _usage(holder: Any) -> tuple[int, int] | None:
    usage = getattr(holder, "usage", None)
    counts = [getattr(usage, name, None) for name in ("prompt_tokens", "completion_tokens")]
    if not all(type(count) is int and 0 <= count < MOST_TOKENS for count in counts):
        return None
    return counts[0], counts[1]  # type: ignore[return-value]


def _message(error: Any) -> str:
    body = error.body if isinstance(error.body, dict) else {}
    return str(body.get("message") or error.response.reason_phrase or "no message")


def _retry_after_s(headers: Any) -> float | None:
    value = headers.get("retry-after")
    with contextlib.suppress(ValueError, TypeError):
        return max(float(value), 0.0)
    with contextlib.suppress(ValueError, TypeError):
        return max(parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    return None
