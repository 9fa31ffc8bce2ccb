"""How one figure is picked out of an exposition.

Law of this file: a selector is text, `name{label="value"}`, so that a preset and an operator's override
are written alike. With `@label` at the end the figure stands in that label (an info metric), else it is
the sample's value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

Sample = tuple[Mapping[str, str], float]
Samples = Mapping[str, Sequence[Sample]]

_SELECTOR = re.compile(
    r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)"
    r"(?:\{(?P<labels>[^}]*)\})?"
    r"(?:@(?P<from_label>[a-zA-Z_][a-zA-Z0-9_]*))?"
)
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"([^"]*)"\s*')


@dataclass(frozen=True, slots=True)
class Selector:
    """One place where a figure may stand."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    from_label: str | None = None

    @classmethod
    def parse(cls, text: str) -> Selector:
        """Read `name`, `name{label="value",...}` or `name@label`.

        Raises:
            ValueError: the text has another form.
        """
        match = _SELECTOR.fullmatch(text.strip())
        if match is None:
            raise ValueError(_bad(text))
        labels: dict[str, str] = {}
        for part in filter(str.strip, (match["labels"] or "").split(",")):
            pair = _LABEL.fullmatch(part)
            if pair is None:
                raise ValueError(_bad(text))
            labels[pair[1]] = pair[2]
        return cls(match["name"], labels, match["from_label"])

    def figures(self, samples: Samples) -> Iterator[Sample]:
        """Yield (other labels, figure) of each sample this selector takes.

        A label that holds no number (`None`, empty) is an unknown figure and is left out.
        """
        for labels, value in samples.get(self.name, ()):
            # An empty label is an absent one, as in Prometheus itself.
            if any(labels.get(key, "") != wanted for key, wanted in self.labels.items()):
                continue
            rest = {key: text for key, text in labels.items() if key not in self.labels}
            if self.from_label is None:
                yield rest, value
                continue
            try:
                yield rest, float(labels[self.from_label])
            except (KeyError, ValueError):
                continue


def _bad(text: str) -> str:
    return (
        f"{text!r} is not a selector, expected a metric name such as 'my:kv_usage', "
        "'my_blocks{kind=\"used\"}' or, for a figure that stands in a label, 'my_config_info@block_size'."
    )
