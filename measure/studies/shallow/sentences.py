"""A shallow baseline for translation: the most similar known sentence, its words replaced.

A dictionary is counted, not trained: for each word the one of the other language that stands most
often beside it (Dice's coefficient). Nothing is known of grammar.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from cepheid.measure.studies.shallow.trial import Metrics, Trial

TOGETHER = 100
Words = Sequence[str]


def run_dictionary(trial: Trial) -> Iterator[Metrics]:
    """Retrieve; retrieve and replace words; translate word by word."""
    from cepheid.reference.torch.translation.sentences import make_bleu

    pairs, train, judged = trial.data, trial.train, trial.evaluation
    source = [pairs.text(pairs.source.row(i).tolist()).split() for i in range(judged.stop)]
    target = [pairs.text(pairs.target.row(i).tolist()).split() for i in range(train.stop)]
    known, asked = source[train], source[judged]
    bleu = make_bleu(pairs.references)

    nearest = find_nearest(known, asked)
    yield {"bleu": bleu.corpus_score([" ".join(target[at]) for at in nearest], None).score}
    words = count_dictionary(known, target)
    replaced = [
        replace_words(known[at], target[at], wanted, words)
        for at, wanted in zip(nearest, asked, strict=True)
    ]
    yield {"bleu": bleu.corpus_score([" ".join(one) for one in replaced], None).score}
    glossed = [" ".join(words.get(word, word) for word in one) for one in asked]
    yield {"bleu": bleu.corpus_score(glossed, None).score}


def find_nearest(known: Sequence[Words], asked: Sequence[Words]) -> list[int]:
    """Return the number of the known sentence most similar to each, by rare words in common."""
    from scipy.sparse import csr_array

    numbers = {word: at for at, word in enumerate(sorted({w for one in known for w in one}))}
    counts = Counter(word for one in known for word in set(one))
    rarity = {word: np.log(len(known) / counts[word]) for word in numbers}

    def weigh(sentences: Sequence[Words]) -> csr_array:
        rows, columns, values = [], [], []
        for row, sentence in enumerate(sentences):
            present = sorted({word for word in sentence if word in numbers})
            weights = np.array([rarity[word] + 1e-9 for word in present])
            rows += [row] * len(present)
            columns += [numbers[word] for word in present]
            values += (weights / (np.linalg.norm(weights) or 1.0)).tolist()
        return csr_array((values, (rows, columns)), (len(sentences), len(numbers)))

    table, wanted = weigh(known).T.tocsr(), weigh(asked)
    found: list[int] = []
    for first in range(0, len(asked), TOGETHER):
        found += (wanted[first : first + TOGETHER] @ table).toarray().argmax(1).tolist()
    return found


def count_dictionary(source: Sequence[Words], target: Sequence[Words]) -> dict[str, str]:
    """Return for each word the most probable translation, by counts of common sentences."""
    together: defaultdict[str, Counter[str]] = defaultdict(Counter)
    here: Counter[str] = Counter()
    there: Counter[str] = Counter()
    for first, second in zip(source, target, strict=True):
        here.update(set(first))
        there.update(set(second))
        for word in set(first):
            together[word].update(set(second))
    return {
        word: max(beside, key=lambda other: 2 * beside[other] / (here[word] + there[other]))
        for word, beside in together.items()
    }


def replace_words(
    source: Words, target: Words, wanted: Words, dictionary: dict[str, str]
) -> list[str]:
    """Return the translation of a similar sentence with the words that differ replaced."""
    old = [word for word in source if word not in wanted]
    new = [word for word in wanted if word not in source]
    changes = {
        dictionary[one]: dictionary.get(other, other)
        for one, other in zip(old, new, strict=False)
        if one in dictionary
    }
    return [changes.get(word, word) for word in target]
