"""A small GPT over bytes, in plain PyTorch."""

from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 256


class ByteGPT(nn.Module):
    """Predicts the next byte at every position of a sequence.

    Args:
        context: The maximum length of a sequence.
        num_layers: The number of blocks.
        num_heads: The number of attention heads; it must divide ``width``.
        width: The embedding dimension.
        dropout: The dropout probability.
    """

    def __init__(self, context: int, num_layers: int, num_heads: int, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        if num_heads < 1 or width % num_heads:
            raise SystemExit(f"model.width = {width}: expected a multiple of model.num_heads = {num_heads}")
        self.byte_embedding = nn.Embedding(VOCABULARY, width)
        self.position_embedding = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, num_heads, dropout) for _ in range(num_layers)))
        self.norm = nn.LayerNorm(width)
        self.apply(_initialise)
        # Each block adds to the residual stream twice. This scale keeps the stream's variance at that of the input.
        for name, parameter in self.named_parameters():
            if name.endswith("to_residual.weight"):
                nn.init.normal_(parameter, std=0.02 / (2 * num_layers) ** 0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits, (batch, length, 256), for int64 tokens, (batch, length)."""
        x = self.byte_embedding(tokens) + self.position_embedding.weight[: tokens.shape[1]]
        x = self.norm(self.blocks(self.dropout(x)))
        return functional.linear(x, self.byte_embedding.weight)


class Block(nn.Module):
    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(width, num_heads, dropout)
        self.perceptron = Perceptron(width, dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return x + self.perceptron(x)


class Attention(nn.Module):
    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm = nn.LayerNorm(width)
        self.to_query_key_value = nn.Linear(width, 3 * width)
        self.to_residual = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.to_query_key_value(self.norm(x)).unflatten(-1, (3, self.num_heads, -1))
        # (batch, length, 3, heads, head width) -> 3 x (batch, heads, length, head width)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.dropout(self.to_residual(mixed.transpose(1, 2).flatten(-2)))


class Perceptron(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.to_residual = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.to_residual(functional.gelu(self.widen(self.norm(x)))))


def next_byte_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats of each byte after the first, given the bytes before it.

    Args:
        model: A ``ByteGPT``, or a wrapper around one.
        tokens: uint8, (batch, length + 1).
    """
    tokens = tokens.long()
    logits = model(tokens[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
