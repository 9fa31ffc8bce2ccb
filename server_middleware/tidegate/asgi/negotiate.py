"""What the caller prefers: content type and language, by weight.

Law of this file: a malformed preference is no preference; nothing here raises.
"""

from __future__ import annotations

PROBLEM_JSON = "application/problem+json"
_LONGEST_CHARACTERS = 2048


def weights(value: str) -> dict[str, float]:
    """A weighted list (`a;q=0.5, b`) as lower-case items to weights, in order; a bad weight is 0."""
    found: dict[str, float] = {}
    for part in value[:_LONGEST_CHARACTERS].lower().split(","):
        item, *parameters = (piece.strip() for piece in part.split(";"))
        if item and item not in found:
            found[item] = _weight(parameters)
    return found


def _weight(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, figure = parameter.partition("=")
        if name.strip() == "q":
            figure = figure.strip()
            digits = figure.replace(".", "", 1)
            plain = digits.isascii() and digits.isdigit() and len(digits) <= 4
            return min(float(figure), 1.0) if plain else 0.0
    return 1.0


def prefers_problem_json(accept: str) -> bool:
    """Whether `Accept` names problem+json and likes it at least as much as plain JSON."""
    if "problem+json" not in accept.lower():
        return False
    found = weights(accept)
    plain = found.get("application/json", found.get("application/*", found.get("*/*", 0.0)))
    return found.get(PROBLEM_JSON, 0.0) > 0 and found[PROBLEM_JSON] >= plain


def prefers_chinese(accept: str) -> bool:
    """Whether `Accept-Language` ranks some Chinese above English; the earlier wins a tie."""
    if "zh" not in accept.lower():
        return False
    english = chinese = 0.0
    first = ""
    for tag, weight in weights(accept).items():
        language = tag.partition("-")[0]
        if language in ("zh", "en"):
            first = first or language
        if language == "zh":
            chinese = max(chinese, weight)
        elif language == "en":
            english = max(english, weight)
    return chinese > english or (chinese == english > 0 and first == "zh")
