"""What layers do beyond equalling PyTorch: dropout, generation, masks, functions, and what they refuse."""

import numpy as np
import pytest

import netcl
from netcl import autograd as ag, nn
from netcl.core.device import manager
from netcl.core.tensor import Tensor
from netcl.nn import functional as F


@pytest.fixture
def queue():
    return manager.default("cpu").queue


def drawn(queue, *shape, seed=0, dtype="float32") -> Tensor:
    return Tensor.from_host(queue, np.random.default_rng(seed).normal(size=shape), dtype)


# ---- dropout -----------------------------------------------------------------------------------------------------------


def test_dropout_drops_in_training_alone(queue):
    x = Tensor.from_shape(queue, (100, 100), fill=1.0)
    layer = nn.Dropout(0.25)
    netcl.manual_seed(1)
    first, second = layer(x).to_host(), layer(x).to_host()
    assert set(np.unique(first)) == {0.0, np.float32(1 / 0.75)} and (first == 0).mean() == pytest.approx(0.25, abs=0.02)
    assert not np.array_equal(first, second)
    netcl.manual_seed(1)
    assert np.array_equal(layer(x).to_host(), first)
    seeded = nn.Dropout(0.25, seed=3)
    assert np.array_equal(seeded(x).to_host(), seeded(x).to_host())
    assert layer.eval()(x) is x and nn.Dropout(0.0)(x) is x and not nn.Dropout(1.0)(x).to_host().any()


@pytest.mark.parametrize(("kind", "function", "axes"), [(nn.Dropout2d, F.dropout2d, 2), (nn.Dropout1d, F.dropout1d, 1)])
def test_channel_dropout_drops_whole_channels(queue, kind, function, axes):
    x = Tensor.from_shape(queue, (10, 20, *(3,) * axes), fill=2.0).requires_grad_()
    layer = kind(0.5, seed=1)
    y = layer(x)
    values = y.to_host().reshape(200, -1)
    assert (values == values[:, :1]).all() and set(np.unique(values)) == {0.0, 4.0}
    y.sum().backward()
    assert np.array_equal(x.grad.to_host(), y.to_host() / 2)
    assert np.array_equal(function(x, 0.5, seed=1).to_host(), y.to_host())
    assert np.array_equal(function(x, training=False).to_host(), x.to_host())
    with pytest.raises(ValueError, match=rf"{kind.__name__}: expected input \(N, C, .*, got \(2, 2\)"):
        layer(drawn(queue, 2, 2))


def test_dropout_between_recurrent_layers(queue):
    x = drawn(queue, 5, 2, 3)
    layer = nn.GRU(queue, 3, 4, num_layers=2, dropout=1.0)
    second = nn.GRU(queue, 4, 4)
    second.load_state_dict({name: layer.state_dict()[name.replace("l0", "l1")] for name in second.state_dict()})
    # With everything dropped the second layer sees zeros.
    np.testing.assert_array_equal(layer(x)[0].to_host(), second(Tensor.from_shape(queue, (5, 2, 4)))[0].to_host())
    plain = nn.GRU(queue, 3, 4, num_layers=2)
    plain.load_state_dict(layer.state_dict())
    np.testing.assert_array_equal(layer.eval()(x)[0].to_host(), plain(x)[0].to_host())


# ---- attention, transformers, GPT --------------------------------------------------------------------------------------


def test_causal_attention_sees_no_later_place(queue):
    layer = nn.MultiheadAttention(queue, 8, 2)
    x = drawn(queue, 2, 5, 8)
    out = layer(x, is_causal=True)
    masked = layer(x, attn_mask=np.triu(np.ones((5, 5), bool), 1))
    np.testing.assert_allclose(out.to_host(), masked.to_host(), rtol=1e-5, atol=1e-6)
    again, weights = layer(x, is_causal=True, need_weights=True)
    np.testing.assert_allclose(again.to_host(), out.to_host(), rtol=1e-5, atol=1e-6)
    assert weights.shape == (2, 5, 5) and not np.triu(weights.to_host(), 1).any()
    np.testing.assert_allclose(weights.to_host().sum(-1), 1, rtol=1e-5)


def test_attention_of_three_tensors_gives_its_weights_too(queue):
    layer = nn.MultiheadAttention(queue, 8, 2)
    x, memory = drawn(queue, 2, 3, 8), drawn(queue, 2, 5, 8)
    out, weights = layer(x, memory, memory)
    assert out.shape == x.shape and weights.shape == (2, 3, 5)
    alone, nothing = layer(x, memory, memory, need_weights=False)
    assert nothing is None
    for other in (alone, layer(x, memory)):
        np.testing.assert_allclose(other.to_host(), out.to_host(), rtol=1e-5, atol=1e-6)


def test_transformer_encoder_is_its_layers(queue):
    layer = nn.TransformerEncoderLayer(queue, 8, 2, 16, dropout=0.0)
    model = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(queue, 8))
    x = drawn(queue, 2, 3, 8)
    np.testing.assert_array_equal(model(x).to_host(), model.norm(layer(layer(x))).to_host())
    assert model.layers[0].linear1.weight is not model.layers[1].linear1.weight
    assert [name for name in model.state_dict() if "norm1.weight" in name] == ["layers.0.norm1.weight", "layers.1.norm1.weight"]


def test_gpt_is_a_stack_of_pre_norm_encoder_layers(queue):
    # Which are held against PyTorch's.
    model = nn.GPT(queue, vocab_size=11, block_size=6, n_layer=2, n_head=2, n_embd=8).to("float64").eval()
    names = {"ln_1": "norm1", "attn.c_attn.": "self_attn.in_proj_", "attn.c_proj": "self_attn.out_proj", "ln_2": "norm2"}
    names |= {"mlp.c_fc": "linear1", "mlp.c_proj": "linear2"}
    tokens = np.random.default_rng(0).integers(0, 11, (2, 6))
    x = model.wte(tokens) + model.wpe(np.arange(6))
    for block in model.h:
        layer = nn.TransformerEncoderLayer(queue, 8, 2, 32, 0.0, "gelu", norm_first=True, dtype="float64")
        state = {}
        for name, array in block.state_dict().items():
            old = next(old for old in names if name.startswith(old))
            state[names[old] + name[len(old) :]] = array
        layer.load_state_dict(state)
        x = layer(x, is_causal=True)
    logits = model.ln_f(x).to_host() @ model.wte.weight.to_host().T
    np.testing.assert_allclose(model(tokens).to_host(), logits, rtol=1e-9, atol=1e-12)
    # The head is the table: one parameter, two names.
    assert model.lm_head.weight is model.wte.weight and "lm_head.weight" in model.state_dict()
    assert sum(p is model.wte.weight for p in model.parameters()) == 1


def test_generation(queue):
    netcl.manual_seed(0)
    model = nn.GPT(queue, vocab_size=9, block_size=4, n_layer=1, n_head=2, n_embd=8, dropout=0.2)
    greedy = model.generate([[1, 2], [3, 4]], 6, temperature=0)
    assert greedy.shape == (2, 8) and greedy.dtype == np.int64 and greedy[:, :2].tolist() == [[1, 2], [3, 4]]
    # Step by step it is the likeliest token after the last four.
    with ag.no_grad():
        model.eval()
        for at in range(2, 8):
            window = greedy[:, max(at - 4, 0) : at]
            assert np.array_equal(model(window).to_host()[:, -1].argmax(-1), greedy[:, at])
        model.train()
    assert np.array_equal(model.generate([[1]], 5, top_k=1, seed=0), model.generate([[1]], 5, temperature=0))
    assert np.array_equal(model.generate([[1]], 9, seed=4), model.generate([[1]], 9, seed=4))
    assert model.training and len(np.unique(model.generate([[1]], 60, temperature=3.0, seed=4))) > 3
    # What the text has already is less likely, and each step is heard and can be the last.
    heard = []
    apart = model.generate([[0]], 8, temperature=0, repetition_penalty=1.5, each=lambda more: heard.append(more.tolist()))
    assert heard == apart[0, 1:, None].tolist()
    with ag.no_grad():
        model.eval()
        for at in range(1, 9):
            scores, seen = model(apart[:, max(at - 4, 0) : at]).to_host()[0, -1], np.unique(apart[0, :at])
            scores[seen] = np.where(scores[seen] > 0, scores[seen] / 1.5, scores[seen] * 1.5)
            assert scores.argmax() == apart[0, at]
        model.train()
    texts = [[1, 2, 3], [4], np.array([0, 5])]
    for found, text in zip(model.generate(texts, 12, temperature=0), texts, strict=True):
        assert np.array_equal(found, model.generate([text], 12, temperature=0)[0])
    assert model.generate([[0]], 8, each=lambda more: False).shape == (1, 2)
    with pytest.raises(ZeroDivisionError):
        model.generate([[0]], 8, each=lambda more: 1 / 0)
    with pytest.raises(ValueError, match="repetition_penalty=0 must be above 0"):
        model.generate([[1]], 1, repetition_penalty=0)
    with pytest.raises(ValueError, match=r"GPT takes tokens \(batch, 1 to 4\); these have shape \(1, 5\)"):
        model([[1, 2, 3, 4, 5]])
    with pytest.raises(ValueError, match="at least 1"):
        model.generate([[]], 1)
    with pytest.raises(ValueError, match="temperature=-1"):
        model.generate([[1]], 1, temperature=-1)


@pytest.mark.parametrize("kind", ["TransformerBlock", "DecoderBlock"])
def test_a_cache_gives_what_the_whole_sequence_gives(queue, kind):
    block = getattr(nn, kind)(queue, 8, 2, dtype="float64").eval()
    x = drawn(queue, 3, 6, 8, dtype="float64")
    with ag.no_grad():
        whole = block(x).to_host()
        cache = nn.KVCache(n_layer=1, batch=3, n_head=2, head_dim=4, capacity=6, queue=queue, dtype="float64")
        parts = [block(x[:, :3], cache)]
        cache.advance(3)
        for place in range(3, 6):
            parts.append(block(x[:, place : place + 1], cache))
            cache.advance()
        np.testing.assert_allclose(np.concatenate([part.to_host() for part in parts], 1), whole, rtol=1e-9, atol=1e-12)
        with pytest.raises(ValueError, match="KVCache holds 6 places: 1 more do not fit behind 6"):
            block(x[:, :1], cache)
        cache.reset()
        np.testing.assert_allclose(block(x[:, :3], cache).to_host(), whole[:, :3], rtol=1e-9, atol=1e-12)
        cache.advance(3)
        with pytest.raises(ValueError, match="2 places cannot follow 3 at once"):
            block(x[:, :2], cache)


def test_rotary_attention_counts_distances_alone(queue):
    layer = nn.RotaryAttention(queue, 8, 2, dtype="float64")
    x = drawn(queue, 1, 6, 8, dtype="float64")
    expected = layer(x).to_host()
    # Three places on the scores are the same.
    q, k, _ = (F.permute(F.reshape(part, (1, 6, 2, 4)), (0, 2, 1, 3)) for part in F.split(layer.qkv(x), 8, -1))
    scores = [F.matmul(F.rotary(q, start=s), F.rotary(k, start=s), transpose_b=True).to_host() for s in (0, 3)]
    np.testing.assert_allclose(scores[1], scores[0], rtol=1e-9, atol=1e-12)
    assert expected.shape == (1, 6, 8)
    # A place sees nothing behind it.
    changed = layer(F.cat([x[:, :4], x[:, 4:] * 3.0], 1)).to_host()
    np.testing.assert_array_equal(changed[:, :4], expected[:, :4])
    assert not np.allclose(changed[:, 4:], expected[:, 4:])


def test_parts_of_decoders(queue):
    table = nn.Embedding(queue, 7, 4)
    head = nn.TiedLinear(table.weight)
    x = drawn(queue, 2, 3, 4)
    np.testing.assert_allclose(head(x).to_host(), x.to_host() @ table.weight.to_host().T, rtol=1e-5, atol=1e-6)
    assert nn.Sequential(table, head).num_parameters() == 28
    gated = nn.SwiGLU(queue, 4, hidden=6)
    up, gate = gated.up(x).to_host(), gated.gate(x).to_host()
    expected = (gate / (1 + np.exp(-gate)) * up) @ gated.down.weight.to_host().T
    np.testing.assert_allclose(gated(x).to_host(), expected, rtol=1e-4, atol=1e-5)
    assert nn.SwiGLU(queue, 96).hidden == 256
    places = nn.PositionalEmbedding(queue, 5, 4)
    np.testing.assert_array_equal(places(3, start=2).to_host(), places.weight.to_host()[2:])
    with pytest.raises(ValueError, match="knows the places 0 to 4, not 6 from 0 on"):
        places(6)
    # Everything in a block is trained.
    for block in (nn.TransformerBlock(queue, 4, 2), nn.DecoderBlock(queue, 4, 2)):
        block(x).sum().backward()
        assert all(parameter.grad is not None for parameter in block.parameters())


# ---- functions ---------------------------------------------------------------------------------------------------------


def test_functions_of_layers(queue):
    x = drawn(queue, 2, 3, 4, 4)
    np.testing.assert_allclose(F.global_avg_pool2d(x).to_host(), x.to_host().mean((2, 3), keepdims=True), rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(nn.GlobalAvgPool2d()(x).to_host(), F.global_avg_pool2d(x).to_host())
    rows = F.normalize(drawn(queue, 5, 3)).to_host()
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-5)
    assert not F.normalize(Tensor.from_shape(queue, (2, 3))).to_host().any()
    np.testing.assert_array_equal(nn.Concat(1)(x, x).to_host(), nn.Concat(1)([x, x]).to_host())
    depthwise = nn.DepthwiseConv2d(queue, 3, 3, pad=1)
    assert depthwise.weight.shape == (3, 1, 3, 3) and depthwise(x).shape == x.shape
    assert nn.Unflatten(1, (3, -1))(nn.Flatten()(x)).shape == (2, 3, 16)
    for name in ("conv2d", "batch_norm", "cross_entropy", "gelu", "scaled_dot_product_attention", "embedding", "interpolate"):
        assert callable(getattr(F, name))


def test_weights_of_losses_move_with_them(queue):
    loss = nn.CrossEntropyLoss(weight=[1.0, 2.0, 0.5]).to(queue, "float64")
    x, y = drawn(queue, 4, 3, dtype="float64"), np.array([0, 1, 2, 1])
    weight = Tensor.from_host(queue, [1.0, 2.0, 0.5], "float64")
    assert loss(x, y).item() == F.cross_entropy(x, y, weight).item() and loss.parameters() == []
    positive = nn.BCEWithLogitsLoss(pos_weight=weight)
    target = Tensor.from_host(queue, np.eye(4, 3), "float64")
    assert positive(x, target).item() == F.binary_cross_entropy_with_logits(x, target, pos_weight=weight).item()
    with pytest.raises(ValueError, match='MSELoss: reduction is "mean", "sum" or "none", not \'batchmean\''):
        nn.MSELoss("batchmean")


# ---- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "match", "make"),
    [
        (
            ValueError,
            "Conv2d: groups=3 must divide in_channels=4 and out_channels=6",
            lambda q: nn.Conv2d(q, 4, 6, 3, groups=3),
        ),
        (ValueError, "Conv2d: kernel_size is 0; it must be at least 1", lambda q: nn.Conv2d(q, 4, 6, 0)),
        (TypeError, r"kernel_size is a whole number or 2 of them, not \(3, 3, 3\)", lambda q: nn.Conv2d(q, 4, 6, (3, 3, 3))),
        (TypeError, "stride is a whole number or 2 of them, not 1.5", lambda q: nn.Conv2d(q, 4, 6, 3, stride=1.5)),
        (ValueError, "padding is -1; it must be at least 0", lambda q: nn.Conv2d(q, 4, 6, 3, padding=-1)),
        (ValueError, '"same" needs a stride of 1', lambda q: nn.Conv2d(q, 4, 6, 3, stride=2, padding="same")),
        (ValueError, "not 'full'", lambda q: nn.Conv2d(q, 4, 6, 3, padding="full")),
        (ValueError, "padding_mode is 'mirror'; use 'zeros', ", lambda q: nn.Conv2d(q, 4, 6, 3, padding_mode="mirror")),
        (ValueError, "in_channels is 0; it must be at least 1", lambda q: nn.Conv1d(q, 0, 6, 3)),
        (TypeError, "out_channels is a whole number, not 'six'", lambda q: nn.Conv2d(q, 4, "six", 3)),
        (ValueError, "MaxPool2d: kernel_size is 0", lambda q: nn.MaxPool2d(0)),
        (ValueError, "num_features is -1", lambda q: nn.BatchNorm2d(q, -1)),
        (TypeError, "positional", lambda q: nn.BatchNorm2d(q, 4, 0.1)),
        (ValueError, "num_groups=3 must divide num_channels=4", lambda q: nn.GroupNorm(q, 3, 4)),
        (ValueError, "normalized_shape names no axis", lambda q: nn.LayerNorm(q, ())),
        (ValueError, "num_heads=3 must divide embed_dim=8", lambda q: nn.MultiheadAttention(q, 8, 3)),
        (ValueError, "activation is one of relu, gelu, silu", lambda q: nn.TransformerEncoderLayer(q, 8, 2, activation="x")),
        (ValueError, "padding_idx=5 is no index of 5 rows", lambda q: nn.Embedding(q, 5, 2, padding_idx=5)),
        (ValueError, "p is a probability from 0 to 1, not 1.5", lambda q: nn.Dropout(1.5)),
        (ValueError, "hidden_size is 0", lambda q: nn.LSTM(q, 3, 0)),
        (ValueError, "not neither", lambda q: nn.Upsample()),
        (TypeError, r"ZeroPad2d: padding is .* \(left, right, top, bottom\), not \(1, 2\)", lambda q: nn.ZeroPad2d((1, 2))),
        (ValueError, 'stem is "cifar" or "imagenet", not "mnist"|not \'mnist\'', lambda q: nn.ResNet18(q, stem="mnist")),
    ],
)
def test_constructors_say_what_is_wrong(queue, kind, match, make):
    with pytest.raises(kind, match=match):
        make(queue)


@pytest.mark.parametrize(
    ("match", "make", "shape"),
    [
        (
            r"Conv2d\(in_channels=3\): expected input \(N, 3, H, W\), got \(2, 4, 5, 5\)",
            lambda q: nn.Conv2d(q, 3, 4, 3),
            (2, 4, 5, 5),
        ),
        (r"Conv1d\(in_channels=3\): expected input \(N, 3, L\)", lambda q: nn.Conv1d(q, 3, 4, 3), (2, 4, 5)),
        (r"the window|kernel|larger", lambda q: nn.Conv2d(q, 3, 4, 7), (2, 3, 5, 5)),
        (r"expected input \(N, 3, H, W\)", lambda q: nn.ConvTranspose2d(q, 3, 4, 7), (2, 4, 5, 5)),
        (r"BatchNorm2d\(3\): expected input \(N, 3, H, W\), got \(2, 3\)", lambda q: nn.BatchNorm2d(q, 3), (2, 3)),
        (r"BatchNorm1d\(3\): expected input \(N, 3\) or \(N, 3, L\)", lambda q: nn.BatchNorm1d(q, 3), (2, 4)),
        (r"GroupNorm\(num_channels=4\): expected input \(N, 4, ...\)", lambda q: nn.GroupNorm(q, 2, 4), (2, 3)),
        (r"LSTM\(input_size=3\): expected input \(batch, length, 3\)", lambda q: nn.LSTM(q, 3, 4, batch_first=True), (2, 5, 2)),
        (r"the sequence is empty", lambda q: nn.GRU(q, 3, 4), (0, 5, 3)),
        (r"query has shape \(2, 7\); it must be \(batch, length, 8\)", lambda q: nn.MultiheadAttention(q, 8, 2), (2, 7)),
        (r"PReLU has 3 slopes", lambda q: nn.PReLU(q, 3), (2, 4)),
        (r"cannot be split into \(4, 2\)", lambda q: nn.Unflatten(1, (4, 2)), (2, 9)),
        (r"ZeroPad2d: expected input \(..., H, W\)", lambda q: nn.ZeroPad2d(1), (2, 3)),
    ],
)
def test_layers_say_what_they_take(queue, match, make, shape):
    with pytest.raises(ValueError, match=match):
        make(queue)(Tensor.from_shape(queue, shape))


def test_states_and_masks_of_the_wrong_shape(queue):
    x = drawn(queue, 5, 2, 3)
    with pytest.raises(ValueError, match=r"a first state has shape \(1, 3, 4\); it must be \(1, 2, 4\)"):
        nn.GRU(queue, 3, 4)(x, Tensor.from_shape(queue, (1, 3, 4)))
    with pytest.raises(TypeError, match=r"a pair \(h, c\)"):
        nn.LSTM(queue, 3, 4)(x, Tensor.from_shape(queue, (1, 2, 4)))
    with pytest.raises(ValueError, match=r"key_padding_mask has shape \(5, 2\); it must be \(2, 5\)"):
        nn.MultiheadAttention(queue, 4, 2)(drawn(queue, 2, 5, 4), key_padding_mask=np.zeros((5, 2), bool))
