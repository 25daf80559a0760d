"""A normal distribution with a diagonal matrix is one for each number."""

import pytest
from tests.measure.fix.proposing import proposed, source

PROGRAM = """
    import torch
    from torch.distributions import {names}


    def policy(mean, var):
        {made}return {policy}
"""


def program(policy: str, made: str = "", names: str = "MultivariateNormal") -> str:
    return PROGRAM.format(policy=policy, made=f"{made}\n        " if made else "", names=names)


AFTER = "Independent, MultivariateNormal, Normal"


@pytest.mark.parametrize(
    ("policy", "made", "after"),
    [
        ("MultivariateNormal(mean, torch.diag_embed(var))", "", "Independent(Normal(mean, var.sqrt()), 1)"),
        ("MultivariateNormal(mean, torch.diag(var.exp()))", "", "Independent(Normal(mean, var.exp().sqrt()), 1)"),
        ("MultivariateNormal(mean, scale_tril=torch.diag(var))", "", "Independent(Normal(mean, var), 1)"),
        ("MultivariateNormal(mean, cov)", "cov = torch.diag_embed(var)", "Independent(Normal(mean, var.sqrt()), 1)"),
    ],
)
def test_the_matrix_goes(policy: str, made: str, after: str) -> None:
    text = program(policy, made)
    assert proposed(text, "MultivariateNormal(", "HST125", "independent-normals") == [source(program(after, "", AFTER))]


@pytest.mark.parametrize(
    ("policy", "made"),
    [
        ("MultivariateNormal(mean, var)", ""),
        ("MultivariateNormal(mean, precision_matrix=torch.diag(var))", ""),
        ("MultivariateNormal(mean, torch.diag(var, 1))", ""),
        ("MultivariateNormal(mean, torch.diag(var) + 1)", ""),
        ("MultivariateNormal(mean, torch.diag(var)).covariance_matrix", ""),
        ("MultivariateNormal(mean, torch.diag(var)), MultivariateNormal(mean, var)", ""),
        ("MultivariateNormal(mean, cov), cov", "cov = torch.diag(var)"),
        ("MultivariateNormal(mean, cov)", "cov = torch.diag(var.exp())"),
    ],
)
def test_others_stay(policy: str, made: str) -> None:
    assert not proposed(program(policy, made), "MultivariateNormal(", "HST125", "independent-normals")
