"""Text and conversations for torchtitan's trainer: encoded, packed and mixed, with a checkpoint for any number of ranks."""

import json
import re
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from titan_ranks import CHATS, NUM_TEXTS, TEXTS, Tokenizer, make

from fkat_data import ConfigurationError
from fkat_data.torchtitan import EncodeChat, EncodeText, TitanTextLoader

IGNORED = -100


def documents_in(rows):
    """What a trainer could learn of rows: each fragment's tokens, with the one behind it where the loss counts that."""
    found = []
    for inputs, labels in rows:
        starts = [*torch.nonzero(inputs["positions"] == 0).flatten().tolist(), len(labels)]
        for start, stop in pairwise(starts):
            found.append((inputs["input"][start:stop].tolist(), labels[start:stop].tolist()))
    return found


def text_of(tokens):
    return "".join(chr(token) for token in tokens if token > 2)


@given(
    texts=st.lists(st.text(st.sampled_from("abc"), max_size=30), min_size=2, max_size=20),
    pack=st.sampled_from(["concatenate", "best_fit"]),
    longest=st.sampled_from([None, 5, 16]),
    num_rows=st.sampled_from([None, 1, 3]),
    weights=st.sampled_from([None, {"0": 3, "1": 1}]),
)
def test_an_epoch_has_every_pair_of_neighbouring_tokens_once(texts, pack, longest, num_rows, weights):
    parts = [texts] if weights is None else [texts[::2], texts[1::2]]
    encode = EncodeText(Tokenizer())
    loader = TitanTextLoader(
        {str(number): ([{"text": text} for text in part], encode) for number, part in enumerate(parts)},
        weights=weights,
        row_length=16,
        max_document_length=longest,
        pack=pack,
        num_rows=num_rows,
        num_workers=0,
        repeat=False,
    )
    rows = []
    for inputs, labels in loader:
        assert inputs["input"].shape == inputs["positions"].shape == labels.shape
        assert labels.shape[-1] == 16
        assert labels.dim() == (1 if num_rows is None else 2)
        if num_rows is None:
            rows.append((inputs, labels))
        else:
            rows += [
                ({name: value[row] for name, value in inputs.items()}, labels[row]) for row in range(labels.shape[0])
            ]
    pairs = Counter()
    for tokens, labels in documents_in(rows):
        assert len(tokens) <= (longest or 16) or set(labels) == {IGNORED}  # what pads a row
        pairs.update((token, label) for token, label in zip(tokens, labels, strict=True) if label != IGNORED)
    encoded = [Tokenizer().encode(text, add_bos=True, add_eos=True) for text in texts]
    assert pairs == Counter(pair for tokens in encoded for pair in pairwise(tokens))


def test_the_loss_counts_what_the_assistant_says_in_every_turn():
    turns = [("system", "be brief"), ("user", "a?"), ("assistant", "b"), ("user", "c?"), ("assistant", "d")]
    chat = {"messages": [{"role": role, "content": content} for role, content in turns]}
    (document,) = EncodeChat(Tokenizer())([chat])
    counted = document["labels"] != IGNORED
    assert text_of(document["labels"][counted]) == "b\nd\n"
    assert document["labels"][-1] == Tokenizer.eos_id
    whole = [Tokenizer.bos_id, *map(ord, Tokenizer().apply_chat_template(chat["messages"])), Tokenizer.eos_id]
    assert document["input"].tolist() == whole[:-1]
    assert document["labels"][counted].tolist() == torch.tensor(whole[1:])[counted].tolist()


class Forgetful(Tokenizer):
    """Its template leaves out the turns before the last question, as some that hide thoughts do."""

    def apply_chat_template(self, messages, add_generation_prompt=False):
        return super().apply_chat_template(messages[-2:], add_generation_prompt)


@pytest.mark.parametrize(
    ("tokenizer", "roles", "match"),
    [(Tokenizer(), ["user"], "no message of the assistant"), (Forgetful(), ["user", "assistant"] * 2, "chat template")],
)
def test_a_conversation_that_cannot_be_masked_is_an_error_that_says_why(tokenizer, roles, match):
    messages = [{"role": role, "content": str(number)} for number, role in enumerate(roles)]
    with pytest.raises(ConfigurationError, match=match):
        EncodeChat(tokenizer)([{"messages": messages}])


@pytest.mark.parametrize(
    "sources", [{}, {"a": (TEXTS, EncodeText(Tokenizer())), "b": (CHATS, EncodeChat(Tokenizer()))}]
)
def test_several_sources_need_weights(sources):
    with pytest.raises(ConfigurationError, match="sources"):
        TitanTextLoader(sources, row_length=8)


def test_weights_are_shares_of_the_tokens():
    rows = list(islice(make("mixed"), 400))
    share = sum(1 for inputs, _ in rows if "[user]" in text_of(inputs["input"])) / len(rows)
    assert abs(share - 0.25) < 0.06


@pytest.mark.parametrize("kind", ["text", "mixed"])
def test_a_checkpoint_goes_on_with_the_next_row_in_any_epoch(kind):
    whole = [inputs["input"].tolist() for inputs, _ in islice(make(kind), 200)]
    for num_before in (0, 3, 70, 131):
        loader, fresh = make(kind), make(kind)
        list(islice(loader, num_before))
        fresh.load_state_dict(loader.state_dict())
        assert [inputs["input"].tolist() for inputs, _ in islice(fresh, 60)] == whole[num_before : num_before + 60]


def test_ranks_go_on_from_a_checkpoint_of_others_and_end_together(processes, prepared, tmp_path, some):
    for kind in some(("text", "mixed"), 1):
        script = Path(__file__).with_name("titan_ranks.py")
        rows, lengths = [], []
        for num_ranks, num_steps, before in ((2, 4, "none"), (3, 2, f"{kind}-2"), (2, 0, f"{kind}-3")):
            ranks = prepared.run_ranks(num_ranks, script, tmp_path, kind, num_steps, before, folder=tmp_path)
            for rank, done in enumerate(ranks):
                assert done.returncode == 0, done.stderr
                own = json.loads((tmp_path / f"{kind}-{num_ranks}-{rank}.json").read_text())
                lengths.append(len(own))
                rows += own
        assert lengths[:5] == [4, 4, 2, 2, 2]
        assert lengths[5] == lengths[6] > 4
        seen = Counter(number for tokens, _, _ in rows for number in re.findall(r"<(\d+)>", text_of(tokens)))
        assert len(seen) > NUM_TEXTS - 40  # up to two windows a rank are left out where the ranks end together
        if kind == "text":
            assert set(seen.values()) == {1}
