"""The rules, one file each; ``base.rules`` finds them by walking this folder."""

__all__: list[str] = []
