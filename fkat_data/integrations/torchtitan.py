"""Loaders for torchtitan's trainer: behind ``fkat_data.torchtitan``."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch

from fkat_data.datasets import Pack
from fkat_data.errors import ConfigurationError
from fkat_data.errors.arguments import boolean, integer
from fkat_data.loaders.data_loader import DataLoader
from fkat_data.mixing import DictDataLoader, Weighted
from fkat_data.types import Microbatch, Stateful, close_all

__all__ = ["EncodeChat", "EncodeText", "TitanDataLoader", "TitanTextLoader"]

#: The rest of one that was resumed, and a whole one.
_MOST_EMPTY_EPOCHS = 2
#: The label of a token that the loss does not count, as torch's and torchtitan's losses know it.
_IGNORED = -100


class TitanDataLoader:
    """Delivers epoch after epoch of a loader, as torchtitan's trainer iterates one, and has the loader's state.

    torchtitan's own loaders save one entry for each data-parallel rank, so that they resume on as many ranks as before.
    Here the state of all ranks is the same on each, and a checkpoint resumes on any number of ranks that the loader can
    be split over. ``state_dict`` is collective where the loader's is.

    The trainer builds its loader with ``dp_world_size``, ``dp_rank``, ``tokenizer`` and arguments that differ from
    version to version. Since its configurations are classes, the loader is one too:

    ```python
    class Shards(TitanDataLoader, BaseDataLoader):  # torchtitan's
        @dataclass(kw_only=True, slots=True)
        class Config(BaseDataLoader.Config):
            uri: str
            seed: int = 7

        def __init__(self, config, *, dp_world_size, dp_rank, tokenizer, **sizes):
            shards = ShuffledShardSampler(FsShardSampler(config.uri), config.seed)
            sampler = DistributedDataParallelShardSampler(
                shards, dp_world_size, dp_rank, drop_last=False
            )
            super().__init__(
                ShardedDataLoader(config.seed, sampler, factory, dp_rank=dp_rank)
            )
    ```

    Up to torchtitan 0.2, the ``build_dataloader_fn`` of a ``TrainSpec`` returns ``TitanDataLoader(loader)``.

    Args:
        loader: The loader of this rank: a ``ShardedDataLoader``, a ``StreamingDataLoader``, or another one whose state
            is the same on every rank. Its microbatches are pairs of a dictionary of inputs and the labels, in the
            shapes that the trainer was configured with.
        repeat: False ends after one epoch, as a validation does that reads everything once.

    Raises:
        ConfigurationError: The loader has no state.
    """

    def __init__(self, loader: Iterable[Microbatch], *, repeat: bool = True) -> None:
        if not isinstance(loader, Stateful):
            raise ConfigurationError("loader", loader, "a loader with state_dict and load_state_dict")
        self._loader = loader
        self._repeat = boolean("repeat", repeat)

    def __iter__(self) -> Iterator[Microbatch]:
        """Go on where the loader is, from epoch to epoch.

        Raises:
            ConfigurationError: The loader has delivered nothing for two epochs.
        """
        num_empty_epochs = 0
        while num_empty_epochs < _MOST_EMPTY_EPOCHS:
            num_empty_epochs += 1
            for microbatch in self._loader:
                num_empty_epochs = 0
                yield microbatch
            if not self._repeat:
                return
        raise ConfigurationError("loader", self._loader, "a loader that delivers microbatches on this rank")

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's state: the position of all ranks."""
        return self._loader.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to a saved position; nothing changes for an empty state, as in torchtitan's loaders.

        Raises:
            StateMismatchError: It is no state of such a loader, or belongs to another plan.
        """
        if state_dict:
            self._loader.load_state_dict(dict(state_dict))

    def close(self) -> None:
        """Close the loader, if it can be closed; any number of calls."""
        close_all([self._loader])


class EncodeText:
    """Tokenizes the texts of a window: each token is to be predicted from those before it in its document.

    Args:
        tokenizer: torchtitan's, or another one with ``encode(text, add_bos=, add_eos=)``. It is sent to the workers.
        text: Returns a sample's text; None: its entry ``"text"``.
    """

    def __init__(self, tokenizer: Any, text: Callable[[Any], str] | None = None) -> None:
        self._tokenizer = tokenizer
        self._text = text

    def __call__(self, samples: list[Any]) -> list[dict[str, torch.Tensor]]:
        """Return inputs and labels of each document that has at least two tokens."""
        texts = [sample["text"] if self._text is None else self._text(sample) for sample in samples]
        encoded = [self._tokenizer.encode(text, add_bos=True, add_eos=True) for text in texts]
        return [_shifted(tokens, tokens) for tokens in encoded if len(tokens) > 1]


class EncodeChat:
    """Tokenizes the conversations of a window: the loss counts what the assistant says, in every turn.

    A conversation ends with its last answer, and with the end token that the tokenizer's ``eos_id`` names.

    Args:
        tokenizer: torchtitan's, or another one with ``encode(text, add_bos=, add_eos=)``, ``eos_id`` and
            ``apply_chat_template(messages, add_generation_prompt=)``, which returns a text. It is sent to the workers.
        messages: Returns a sample's messages, mappings with ``"role"`` and ``"content"``; None: its entry ``"messages"``.
    """

    def __init__(self, tokenizer: Any, messages: Callable[[Any], Sequence[Mapping[str, str]]] | None = None) -> None:
        self._tokenizer = tokenizer
        self._messages = messages

    def __call__(self, samples: list[Any]) -> list[dict[str, torch.Tensor]]:
        """Return inputs and labels of each conversation.

        Raises:
            ConfigurationError: A conversation has no answer; or the template writes earlier turns otherwise once later
                ones follow, so that nothing says whose their tokens are.
        """
        chats = [sample["messages"] if self._messages is None else self._messages(sample) for sample in samples]
        return [self._encoded(list(messages), position) for position, messages in enumerate(chats)]

    def _encoded(self, messages: list[Mapping[str, str]], position: int) -> dict[str, torch.Tensor]:
        tokens: list[int] = []
        labels: list[int] = []
        text = ""
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            prompt = self._template(messages[:number], add_generation_prompt=True)
            answered = self._template(messages[: number + 1], add_generation_prompt=False)
            if not (prompt.startswith(text) and answered.startswith(prompt)):
                found = f"another text of the turns before message {number}, at position {position} of the window"
                raise ConfigurationError("tokenizer", found, "a chat template whose text of a turn stays as it is")
            asked = self._tokenizer.encode(prompt[len(text) :], add_bos=not tokens, add_eos=False)
            said = self._tokenizer.encode(answered[len(prompt) :], add_bos=False, add_eos=False)
            tokens += [*asked, *said]
            labels += [*[_IGNORED] * len(asked), *said]
            text = answered
        if not labels:
            found = f"no message of the assistant at position {position} of the window"
            raise ConfigurationError("messages", found, "conversations with an answer; leave out others by a Filter")
        if tokens[-1] != self._tokenizer.eos_id:
            tokens.append(self._tokenizer.eos_id)
            labels.append(self._tokenizer.eos_id)
        return _shifted(tokens, labels)

    def _template(self, messages: list[Mapping[str, str]], *, add_generation_prompt: bool) -> str:
        return self._tokenizer.apply_chat_template(messages, add_generation_prompt=add_generation_prompt)


class TitanTextLoader(TitanDataLoader):
    """Trains torchtitan's models on text and conversations: encoded, packed and mixed by tokens, in worker processes.

    A rank gets its windows of the shuffled samples, which its workers encode and pack. All ranks end an epoch together. A
    checkpoint goes on at the next row on any number of ranks, each row once.

    ```python
    class Text(TitanTextLoader, BaseDataLoader):  # torchtitan's
        @dataclass(kw_only=True, slots=True)
        class Config(BaseDataLoader.Config):
            path: str

        def __init__(
            self,
            config,
            *,
            tokenizer,
            max_context_length,
            num_tokens_per_batch,
            **ranks,
        ):
            super().__init__(
                {"text": (JsonDataset(config.path), EncodeText(tokenizer))},
                row_length=num_tokens_per_batch,
                max_document_length=max_context_length,
                **ranks,
            )
    ```

    Args:
        sources: A dataset with indices for each name, and a function that makes inputs and labels of a window of its
            samples, such as ``EncodeText`` and ``EncodeChat``; or a list of functions, such as ``[Filter(keep), encode]``.
        row_length: Tokens of a row.
        num_rows: Rows of a microbatch, of which an epoch leaves out a last one that is smaller, unless ``repeat`` is
            False; None: it is a single row, without a dimension for it.
        dp_world_size: Data-parallel ranks.
        dp_rank: This one.
        weights: Each source's share of the tokens; None: there is one source. A source that ends begins again, until each
            has ended once; without ``repeat``, each is read once.
        pack: ``"concatenate"`` or ``"best_fit"``, as of ``Pack``.
        max_document_length: Tokens of a document that is not too long; None: a row's.
        too_long: ``"split"``, ``"truncate"``, ``"skip"`` or ``"raise"``, what becomes of longer documents.
        seed: Of the order, the mixture, and what functions draw.
        window_size: Samples of a window.
        num_workers: Worker processes of each source; 0: the trainer's own process encodes.
        shuffle: Whether each epoch has an order of its own.
        repeat: As of ``TitanDataLoader``.
        options: Further arguments of each source's ``DataLoader``, such as ``on_sample_error``.

    Raises:
        ConfigurationError: An argument is invalid.
    """

    def __init__(
        self,
        sources: Mapping[str, tuple[Any, Any]],
        *,
        row_length: int,
        num_rows: int | None = None,
        dp_world_size: int = 1,
        dp_rank: int = 0,
        weights: Mapping[str, float] | None = None,
        pack: Literal["best_fit", "concatenate"] = "concatenate",
        max_document_length: int | None = None,
        too_long: Literal["raise", "skip", "split", "truncate"] = "split",
        seed: int = 0,
        window_size: int = 1024,
        num_workers: int = 1,
        shuffle: bool = True,
        repeat: bool = True,
        **options: Any,
    ) -> None:
        if not isinstance(sources, Mapping) or not sources or (weights is None and len(sources) > 1):
            raise ConfigurationError(
                "sources", sources, "a mapping with one source, or with several and weights for them"
            )
        if num_rows is not None:
            integer("num_rows", num_rows, minimum=1)
        packed = Pack(
            row_length,
            pack,
            too_long,
            fields=("input", "labels"),
            padding={"labels": _IGNORED},
            max_document_length=max_document_length,
        )
        loaders: dict[str, DataLoader[Any]] = {}
        for name, (dataset, encode) in sources.items():
            functions: list[Any] = [encode] if callable(encode) else list(encode)
            loaders[name] = loader = DataLoader(
                dataset,
                num_rows or 1,
                shuffle=shuffle,
                seed=seed + len(loaders),
                num_workers=num_workers,
                window_fn=[*functions, packed],
                window_size=window_size,
                drop_last=num_rows is not None and repeat,
                collate_fn=_row if num_rows is None else _rows,
                **options,
            )
            loader.deal_out(dp_world_size, dp_rank)
        whole: Any = next(iter(loaders.values()))
        self._is_mixed = weights is not None
        if weights is not None:
            mixed = Weighted(weights, seed=seed)
            whole = DictDataLoader(loaders, mixed, key=None, on_exhausted="restart" if repeat else "drop")
        super().__init__(whole, repeat=repeat)

    def __iter__(self) -> Iterator[Microbatch]:
        """Go on where the loader is, from epoch to epoch.

        Raises:
            ConfigurationError: No row was made of any sample.
        """
        microbatches = super().__iter__()
        return (microbatch for _, microbatch in microbatches) if self._is_mixed else microbatches


def _shifted(tokens: Sequence[int], labels: Sequence[int]) -> dict[str, torch.Tensor]:
    return {"input": torch.tensor(tokens[:-1]), "labels": torch.tensor(labels[1:])}


def _row(rows: Sequence[Mapping[str, torch.Tensor]]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    (row,) = rows
    return {"input": row["input"], "positions": row["position_ids"]}, row["labels"]


def _rows(rows: Sequence[Mapping[str, torch.Tensor]]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    inputs, positions, labels = (
        torch.stack([row[name] for row in rows]) for name in ("input", "position_ids", "labels")
    )
    return {"input": inputs, "positions": positions}, labels
