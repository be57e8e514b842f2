"""Words that code compares by identity are those of the code again, in a model that has travelled."""

import pickle

from torch import nn

from snugfit.workers.code_constants import as_in_code

WORD = "conv2d"


def test_words_are_the_constants_of_code_again():
    model = nn.Sequential(nn.Linear(2, 2))
    model.kind, model[0].layers, model[0].free = WORD, [(WORD, [3, WORD]), ["two words"]], (1, 2.0)
    there = pickle.loads(pickle.dumps(model))
    layers = there[0].layers
    assert there.kind is not WORD and layers[0][0] is not WORD
    as_in_code(there)
    assert there.kind is layers[0][0] is layers[0][1][1] is WORD
    assert layers is there[0].layers and layers == model[0].layers and there[0].free == (1, 2.0)


def test_a_list_that_holds_itself():
    model = nn.Linear(2, 2)
    model.around = ["".join(WORD)]
    model.around.append(model.around)
    as_in_code(model)
    assert model.around[0] is WORD and model.around[1] is model.around
