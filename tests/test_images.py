"""Images as tokens: patches as the definition has them, the published size, and digits learned."""

import json
import math
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import pellucid
from pellucid.cli import main
from pellucid.reference import images as reference
from pellucid.runs import reporter as display
from pellucid.runs.checkpoint import folder_of, load_checkpoint, steps_of
from pellucid.runs.metrics import read_metrics
from pellucid.runs.trainer import Trainer
from pellucid.text.tokens.batches import permute
from pellucid.vision.learning import check_labels, initialise_classifier
from pellucid.vision.network import ImageClassifier, ImagesError, patchify, unpatchify, vision
from pellucid.vision.recipe import split_images

FIRST_EDITION = Path(__file__).parent / "data" / "runs_of_the_first_edition"
SIZES = st.tuples(*(st.integers(1, 3) for _ in range(4)))


def small():
    """For images of 8 x 8 pixels, in patches of 2 x 2."""
    return ImageClassifier(vision(16, 2, 2, 16), 2, 1, 10)


@pytest.mark.item("S4-tok-c")
@given(SIZES, st.integers(1, 3))
def test_patches_are_those_of_the_definition(sizes, patch):
    """Bit for bit, and put together again they are the image."""
    n, c, h, w = sizes
    images = np.random.default_rng(0).normal(size=(n, c, h * patch, w * patch))
    patches = patchify(torch.from_numpy(images), patch)
    for image, found in zip(images, patches.numpy(), strict=True):
        assert (found == reference.patchify(image, patch)).all()
    assert (unpatchify(patches, (c, h * patch, w * patch), patch).numpy() == images).all()


@pytest.mark.item("S4-tok-c")
def test_embedding_patches_is_a_convolution():
    """Whose stride is its kernel, to 1e-10."""
    model, images = (
        small().double(),
        torch.randn(3, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3)),
    )
    convolution = nn.Conv2d(1, 16, kernel_size=2, stride=2, dtype=torch.float64)
    with torch.no_grad():
        convolution.weight.copy_(model.embed.weight.view(16, 1, 2, 2))
        convolution.bias.copy_(model.embed.bias)
        theirs = convolution(images).flatten(2).transpose(1, 2)
        assert (model.embed(patchify(images, 2)) - theirs).abs().max() < 1e-10


@pytest.mark.item("S4-tok-c", "X-PARAMS")
def test_the_published_size():
    """ViT-B/16: 224 x 224 pixels are 196 patches and a class token; 86,567,656 numbers."""
    a = vision(768, 12, 12, (224 // 16) ** 2)
    with torch.device("meta"):
        model = ImageClassifier(a, 16, 3, 1000)
    assert a.n_ctx == 197
    assert sum(p.numel() for p in model.parameters()) == 86_567_656
    assert reference.vision_parameters(768, 12, 3072, 16, 3, 196, 1000) == 86_567_656


def test_every_patch_reaches_the_class_whatever_its_place():
    """Bidirectional; and with the positions made equal, the order of the patches does not matter."""
    model = small().double()
    initialise_classifier(model, 1, 0.3)
    images = torch.randn(1, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        before = model(images)
        for k in range(16):
            patches = patchify(images, 2)
            patches[:, k] += 1
            assert (model(unpatchify(patches, (1, 8, 8), 2)) - before).abs().max() > 1e-6
        model.encoder.embed.position.weight[:] = model.encoder.embed.position.weight[0].clone()
        turned = unpatchify(patchify(images, 2).flip(1), (1, 8, 8), 2)
        assert (model(turned) - model(images)).abs().max() < 1e-10


def test_what_does_not_fit_is_refused():
    with pytest.raises(ImagesError, match="no whole number of 3 x 3"):
        patchify(torch.zeros(1, 1, 8, 8), 3)
    with pytest.raises(ImagesError, match="expected 1, the class token"):
        ImageClassifier(vision(16, 1, 2, 4).with_fields({"attention.mask": "causal"}), 2, 1, 10)
    images, labels = np.zeros((4, 1, 8, 8), np.float32), np.zeros(4, np.int64)
    with pytest.raises(ImagesError, match=r"labels \(3,\)"):
        check_labels(images, labels[:3], 10)
    with pytest.raises(ImagesError, match="expected 0 to 9"):
        check_labels(images, labels + 10, 10)


@pytest.mark.slow
def test_training_is_a_function_of_the_seed(tmp_path):
    """And it lowers the loss: the eight images that it is trained on and their classes are soon known."""
    images, labels = np.random.default_rng(0).normal(size=(9, 8, 8)).astype(np.float32), np.arange(9) % 4
    path = image_file(tmp_path, images, labels)
    fields = {"d_model": 16, "n_heads": 2, "patch": 2, "batch": 4, "learning_rate": 1e-2, "evaluate_every": 120}
    kind = {"predictor": "image-classifier", "steps": 120}
    runs = [
        pellucid.train(path, out=tmp_path / name, fields=fields | {"seed": seed}, **kind)
        for name, seed in (("a", 1337), ("b", 1337), ("c", 1))
    ]
    weights = [load_checkpoint(run.path)[0].weights for run in runs]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not all(torch.equal(weights[0][name], weights[2][name]) for name in weights[0])
    losses = [row["loss"] for row in read_metrics(runs[0].path / "metrics.jsonl") if "loss" in row]
    assert losses[-1] < 0.1 < 1 < losses[0]
    model = pellucid.load_images(runs[0].path)
    used, _ = split_images(9, model.recipe)
    assert (model.classify(images[used]) == labels[used]).all()


def image_file(folder, images, labels, name="images.npz"):
    np.savez(folder / name, images=images, labels=labels)
    return folder / name


def bars(n):
    """Images of 4 x 6 pixels with one bright column, whose place is the class."""
    labels = np.arange(n) % 3
    images = np.zeros((n, 4, 6), np.uint8)
    images[np.arange(n), :, labels * 2] = 200
    return images, labels


def test_a_run_is_trained_saved_loaded_and_scored(tmp_path, capsys, monkeypatch):
    """Through the command line, on a file of images; the run's folder is laid out like every other."""
    monkeypatch.setattr(display, "time", SimpleNamespace(monotonic=lambda: 0.0))
    path, run = image_file(tmp_path, *bars(60)), tmp_path / "run"
    sizes = ["--set", "d_model=16", "--set", "n_layers=1", "--set", "batch=8"]
    assert (
        main(["train", str(path), "--predictor", "image-classifier", "--epochs", "8", "--out", str(run), *sizes]) == 0
    )
    assert {"recipe.json", "architecture.json", "data.json", "metrics.jsonl", "checkpoints"} <= {
        p.name for p in run.iterdir()
    }
    model = pellucid.load_images(run)
    images, labels = bars(9)
    assert (model.classify(images) == labels).all()
    assert model.score(images, labels).accuracy == 1.0
    assert model.score(images, (labels + 1) % 3).loss > 1
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in said if "  held-out loss " in line] == [str(7 * k) for k in range(1, 9)]
    assert [line for line in said if line.startswith("step 56/56  loss ") and "nats/image" in line]
    assert "images: 54 to train on, 6 held out, 1 x 4 x 6, 3 classes" in said
    assert main(["score", str(run), str(path)]) == 0
    assert "images    60\naccuracy  1.0000" in capsys.readouterr().out
    assert main(["score", str(run), str(path), "--json"]) == 2
    assert "--json applies to text" in capsys.readouterr().err
    # the checkpoint is the network: what was measured is measured again
    best = min(row["held_out_loss"] for row in read_metrics(run / "metrics.jsonl") if "held_out_loss" in row)
    held = permute(np.arange(60, dtype=np.uint64), 60, model.recipe.train.seed, 0).astype(np.int64)[:6]
    assert model.score(bars(60)[0][held], bars(60)[1][held]).loss == pytest.approx(best, rel=1e-6)


def test_weights_that_diverge_end_the_run_with_3_and_what_was_good_stays(tmp_path, capsys, monkeypatch):
    """Once in the steps, where gradients stop being finite, and once in what is measured after the last epoch."""
    path, sizes = image_file(tmp_path, *bars(60)), ["--set", "d_model=16", "--set", "n_layers=1", "--set", "batch=8"]
    command = ["train", str(path), "--predictor", "image-classifier", "--epochs", "4", *sizes]
    take_step, held_out_loss = Trainer.take_step, Trainer.held_out_loss

    def exploding(self):
        if self.step == 9:
            self.network.head.weight.data.fill_(math.nan)
        take_step(self)

    def measured(self, whole):
        return (math.nan, math.nan, 0.5, 0) if self.step == 28 else held_out_loss(self, whole)

    for name, method, instead, says in (
        ("a", "held_out_loss", measured, "the held-out loss after step 28 is not finite"),
        ("b", "take_step", exploding, "not finite 3 steps in a row, up to step 12"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, method, instead)
            assert main([*command, "--out", str(tmp_path / name)]) == 3
        error = capsys.readouterr().err
        assert error.startswith("pellucid: stopped: the ")
        assert says in error
        assert "--from" not in error  # no run starts from an image classifier
        assert "muon" not in error
        assert steps_of(tmp_path / name)
        assert "NaN" not in (tmp_path / name / "metrics.jsonl").read_text()
        assert pellucid.load_images(tmp_path / name).score(*bars(9)).n == 9
    with pytest.raises(ValueError, match="has no checkpoint of step 9: say best, last, or one of the steps 21"):
        pellucid.load_images(tmp_path / "a", checkpoint="9")


def test_a_run_that_cannot_be_is_refused_before_anything_is_written(tmp_path, capsys):
    images, labels = bars(12)
    good = image_file(tmp_path, images, labels)
    (tmp_path / "text.npz").write_text("no archive")
    np.savez(tmp_path / "pickled.npz", images=np.array([{}], dtype=object), labels=labels[:1])
    cases = [
        ([image_file(tmp_path, images, labels[:5], "few.npz")], {}, r"labels \(5,\)"),
        ([image_file(tmp_path, images, labels * 1.0, "real.npz")], {}, "expected real numbers and integers"),
        ([image_file(tmp_path, images * np.nan, labels, "nan.npz")], {}, "not finite"),
        ([tmp_path / "text.npz"], {}, "expected a .npz file with the arrays images and labels"),
        ([tmp_path / "pickled.npz"], {}, "expected a .npz file with the arrays images and labels"),
        ([tmp_path / "none.npz"], {}, "cannot be read"),
        ([good, good], {}, "2 files were given"),
        ([good], {"patch": 5}, "no whole number of 5 x 5"),
        ([good], {"pacth": 2}, "did you mean 'model.patch'"),
        ([good], {"held_out": 1.5}, "expected a share"),
    ]
    for paths, fields, message in cases:
        with pytest.raises(ValueError, match=message):
            pellucid.train(*paths, predictor="image-classifier", fields=fields, out=tmp_path / "run")
        assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="reads no tokens: give its length in epochs, steps or minutes"):
        pellucid.train(good, predictor="image-classifier", tokens=100, out=tmp_path / "run")


def test_a_run_of_the_first_edition_is_loaded_and_not_resumed(tmp_path):
    """Its checkpoints hold no optimizer state."""
    shutil.copytree(FIRST_EDITION / "runs" / "image-classifier", tmp_path / "run")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    recipe = pellucid.load_images(tmp_path / "run").recipe
    assert (recipe.train.epochs, recipe.train.batch, recipe.train.device) == (2, 16, "cpu")
    with pytest.raises(ValueError, match="hold no optimizer state, so training cannot continue exactly"):
        pellucid.train(out=tmp_path / "run", resume=True, epochs=4)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_minutes_are_kept_and_images_that_changed_are_refused(tmp_path):
    path = image_file(tmp_path, *bars(60))
    fields = {"d_model": 16, "n_layers": 1, "batch": 8}
    began = time.monotonic()
    run = pellucid.train(path, predictor="image-classifier", fields=fields, minutes=0.03, out=tmp_path / "run")
    assert run.exit_code == 0
    assert run.step == run.recipe.n_steps > 0
    assert time.monotonic() - began < 30
    image_file(tmp_path, *bars(57))
    with pytest.raises(ValueError, match=r"was trained on other images \(.*images.npz changed\)"):
        pellucid.train(out=run.path, resume=True)


@pytest.mark.slow
@pytest.mark.item("S4-tok-c")
def test_digits_are_read_by_the_command(tmp_path):
    """scikit-learn's digits, every choice left to `pellucid train`: at least 97 % of the held-out tenth."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    path = image_file(tmp_path, digits.images, digits.target)
    assert main(["train", str(path), "--predictor", "image-classifier", "--out", str(tmp_path / "run")]) == 0
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    print(last)
    assert last["accuracy"] >= 0.97


def test_a_damaged_last_checkpoint_is_warned_of(tmp_path):
    path, sizes = image_file(tmp_path, *bars(60)), ["--set", "d_model=16", "--set", "n_layers=1", "--set", "batch=8"]
    run = tmp_path / "run"
    assert (
        main(["train", str(path), "--predictor", "image-classifier", "--epochs", "4", *sizes, "--out", str(run)]) == 0
    )
    *_, before, newest = steps_of(run)
    (folder_of(run, newest) / "state.json").write_text("{}")
    with pytest.warns(UserWarning, match=f"step {newest} passed over: state.json"):
        assert pellucid.load_images(run, checkpoint="last").provenance["step"] == before
