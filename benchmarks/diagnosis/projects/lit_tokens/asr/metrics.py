"""Token error rate."""


def edit_distance(reference, hypothesis):
    previous = list(range(len(hypothesis) + 1))
    for i, ref in enumerate(reference, start=1):
        current = [i]
        for j, hyp in enumerate(hypothesis, start=1):
            substitution = previous[j - 1] + (ref != hyp)
            current.append(min(substitution, previous[j] + 1, current[j - 1] + 1))
        previous = current
    return previous[-1]


def token_error_rate(references, hypotheses):
    errors = sum(edit_distance(r, h) for r, h in zip(references, hypotheses))
    return errors / max(1, sum(len(r) for r in references))
