"""Ranks of one job: matched, compared, and judged together."""

from torchtriage.ranks.job import judge
from torchtriage.ranks.match import Matches, match
from torchtriage.ranks.recognise import Job, recognise
from torchtriage.ranks.record import RankRecord, record

__all__ = ["Job", "Matches", "RankRecord", "judge", "match", "recognise", "record"]
