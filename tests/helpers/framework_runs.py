"""Scripts that use the Transformers Trainer and Lightning, in real processes, as in helpers.scenarios."""

import os
import tempfile
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from helpers.scenarios import everyone, main, network, pairs, rank, report, weights
from partreduce import DistributedOptimizer
from partreduce.errors import InputError

STEPS, EVALUATES_AT = 12, 6


class Model(torch.nn.Module):
    """A model that computes its loss, as the Trainer expects."""

    def __init__(self):
        super().__init__()
        self.body = network()

    def forward(self, x, labels):
        predicted = self.body(x)
        return {"loss": (predicted - labels).square().mean(), "logits": predicted}


def data():
    generator = torch.Generator().manual_seed(100 + rank())
    inputs = [torch.randn(16, 4, generator=generator) for _ in range(STEPS)]
    return [{"x": x, "labels": x.sum(1, keepdim=True).sin()} for x in inputs]


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def by_hand(schedule):
    """Train with a plain loop; return the mean and this worker's weights at the evaluation, and the final weights."""
    model = Model()
    optimizer = DistributedOptimizer(sgd(model), model, schedule)
    for step, batch in enumerate(data(), start=1):
        model(**batch)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == EVALUATES_AT:
            own = weights(model)
            with optimizer.mean_model():
                mean = weights(model)
    optimizer.finish()
    return {"mean": mean.tolist(), "own": own.tolist(), "end": weights(model).tolist()}


def error_of(action):
    try:
        action()
    except InputError as error:
        return str(error)
    return ""


def unequal():
    return everyone((1, 1, 1, 2))


def transformers_trainer():
    from transformers import Trainer, TrainingArguments

    from partreduce.transformers import ScheduleCallback

    class OwnBatches(Trainer):
        def get_train_dataloader(self):
            return data()

    def train(schedule, model, folder, *, clip=0.0, again=0):
        arguments = TrainingArguments(
            folder,
            max_steps=STEPS,
            eval_strategy="steps",
            eval_steps=EVALUATES_AT,
            save_steps=EVALUATES_AT,
            max_grad_norm=clip,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
        )
        optimizer = sgd(model)
        constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _step: 1.0)
        shown = [{name: values[0] for name, values in batch.items()} for batch in data()]
        trainer = OwnBatches(
            model, arguments, train_dataset=shown, eval_dataset=shown, optimizers=(optimizer, constant)
        )
        trainer.add_callback(ScheduleCallback(trainer, schedule))
        for _ in range(1 + again):
            trainer.train()

    with tempfile.TemporaryDirectory() as folder:
        from safetensors.torch import load_file

        os.chdir(folder)
        model = Model()
        train(pairs(), model, folder)
        end = weights(model).tolist()
        if rank() == 0:
            saved = Model()
            saved.load_state_dict(load_file(Path(folder, f"checkpoint-{EVALUATES_AT}", "model.safetensors")))
            saved = weights(saved).tolist()
        train(pairs(), model, folder, again=1)
        clipped = error_of(lambda: train(everyone(), Model(), folder, clip=1.0))
        report(
            end=end,
            saved=saved if rank() == 0 else None,
            by_hand=by_hand(pairs()),
            clipped=clipped,
            unequal=error_of(lambda: train(unequal(), Model(), folder)),
        )


def lightning_trainer():
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    from partreduce.lightning import ScheduleStrategy

    class Module(lightning.LightningModule):
        def __init__(self, optimizers=1):
            super().__init__()
            self.model, self.optimizers_made, self.seen = Model(), optimizers, None

        def training_step(self, batch, _index):
            return self.model(**batch)["loss"]

        def validation_step(self, _batch, _index):
            self.seen = weights(self.model)

        def configure_optimizers(self):
            made = [sgd(self.model) for _ in range(self.optimizers_made)]
            return made if len(made) > 1 else made[0]

    def fit(schedule, module, folder, *, clip=None):
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=4,
            strategy=ScheduleStrategy(schedule),
            max_epochs=1,
            val_check_interval=EVALUATES_AT,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
            gradient_clip_val=clip,
            enable_progress_bar=False,
            enable_model_summary=False,
            logger=False,
            callbacks=[ModelCheckpoint(folder, every_n_train_steps=EVALUATES_AT, save_top_k=-1)],
        )
        module.automatic_optimization = module.optimizers_made == 1
        trainer.fit(module, DataLoader(data(), batch_size=None), DataLoader(data()[:1], batch_size=None))
        return trainer

    with tempfile.TemporaryDirectory() as own_folder:
        os.chdir(own_folder)
        module = Module()
        seen = []
        module.on_validation_end = lambda: seen.append(module.seen.tolist())
        trainer = fit(pairs(), module, "checkpoints")
        paths = sorted(Path(trainer.strategy.broadcast(str(Path("checkpoints").resolve()))).glob("*.ckpt"))
        saved = Module()
        state = {} if rank() else torch.load(next(p for p in paths if f"step={EVALUATES_AT}" in p.name))["state_dict"]
        if state:
            saved.load_state_dict(state)
        report(
            end=weights(module).tolist(),
            saved=weights(saved).tolist() if state else None,
            seen=seen[0],
            by_hand=by_hand(pairs()),
            clipped=error_of(lambda: fit(everyone(), Module(), "more", clip=1.0)),
            unequal=error_of(lambda: fit(unequal(), Module(), "more")),
            several=error_of(lambda: fit(pairs(), Module(optimizers=2), "more")),
        )


SCENARIOS = {"transformers": (4, transformers_trainer), "lightning": (4, lightning_trainer)}


if __name__ == "__main__":
    main(SCENARIOS)
