"""What is wrong with data, all of it together: the first problems in words, and how many there are."""

from .errors import BadDataError, count_of, shortened

_MOST_SHOWN = 20


class Problems:
    def __init__(self):
        self.count = 0
        self.first = []

    def add(self, message):
        self.count += 1
        if len(self.first) < _MOST_SHOWN:
            self.first.append(shortened(message))

    def raise_if_any(self):
        """BadDataError: with all that are shown, one a line; a single one stands alone."""
        if self.count == 1:
            raise BadDataError(self.first[0])
        if self.count:
            raise BadDataError("\n  ".join([f"the data has {count_of(self.count, 'problem')}:",
                                            *lines_of(self.first, self.count)]))


def lines_of(problems, count):
    """The lines that tell of `count` problems, of which the first are given."""
    return problems + ([f"and {count - len(problems):,} more"] if count > len(problems) else [])
