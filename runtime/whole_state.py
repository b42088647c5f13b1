"""What a rank trains as whole tensors of the model, and back: parameters, buffers, gradients, moments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from torch import Tensor

from ..program.program import Shard
from ..program.trained import store, trained_value
from .active import ActiveProgram
from .collect import Collection
from .optimizer import ShardOptimizer
from .saved.loaded_names import ModelNames, agreeing, match_names
from .shards import ReadBox, boxes_of, fill_kept, fill_shard, owned_grads, owned_value
from .transport import Transport


class WholeState:
    """The state of a rank's active program. Ranks must call the same methods in the same order."""

    transport: Transport
    optimizer: ShardOptimizer
    active: ActiveProgram

    def state_dict(self, everywhere: bool = True) -> dict[str, Tensor]:
        """The whole model by its own names, aliases too, on the CPU of every rank, or of rank 0 only.

        Other ranks get an empty dict then. Buffers that the model doesn't save are left out.
        """
        with self.transport.call("state_dict"):
            return self._gather(self._owned(self._saved), everywhere)

    def grads(self, everywhere: bool = True) -> dict[str, Tensor]:
        """Whole gradients of the last step, clipped if clipping is on, as `state_dict` gives parameters."""
        with self.transport.call("grads"):
            return self._gather(owned_grads(self.active.shards, self.active.state.synced), everywhere)

    def saved(self) -> Collection:
        """The tensors of `state_dict` one at a time, without aliases."""
        with self.transport.call("saved"):
            return Collection(self.transport, self._saved, self._owned(self._saved))

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Cut this rank's shards from a whole state dict; aliases may stand for the name they share."""
        given = {name: tuple(whole.shape) for name, whole in state.items()}
        with self.transport.call("load_state_dict"):
            held = ModelNames.of_all_ranks(self.active.program, self.transport, self.active.shards)
        names = match_names(held, given)
        self.read_parameters(
            lambda shard: agreeing(names[shard.name], lambda name: boxes_of(shard, state[name]))
        )

    def read_parameters(self, reader: Callable[[Shard], ReadBox], unsaved_too: bool = False) -> None:
        """Take this rank's part of every parameter and saved buffer, box by box.

        unsaved_too: also of buffers that the model keeps out of its state dict.
        """
        for shard in self.active.shards if unsaved_too else self._saved:
            store(shard, fill_shard(shard, reader(shard), self.transport.device), self.active.state)

    def optimizer_state_dict(self, everywhere: bool = True) -> dict[str, dict[str, Tensor]]:
        """Whole moments by torch's name for them, each as `state_dict` gives parameters.

        With the number of `steps` they are all that `load_optimizer_state_dict` needs, under any strategy.
        """
        with self.transport.call("optimizer_state_dict"):
            return {moment: self._gather(own, everywhere) for moment, own in self.owned_moments().items()}

    def saved_moments(self) -> dict[str, Collection]:
        """The tensors of `optimizer_state_dict` one at a time, without aliases."""
        with self.transport.call("saved_moments"):
            return {
                moment: Collection(self.transport, self.active.shards, owned)
                for moment, owned in self.owned_moments().items()
            }

    def load_optimizer_state_dict(self, state: Mapping[str, Mapping[str, Tensor]], steps: int) -> None:
        """Cut what this rank trains from whole moments, taken after so many steps."""

        def reader(moment: str, shard: Shard) -> ReadBox | None:
            whole = state.get(moment, {}).get(shard.name)
            return None if whole is None else boxes_of(shard, whole)

        self.read_moments(reader, steps)

    def read_moments(self, reader: Callable[[str, Shard], ReadBox | None], steps: int) -> None:
        """Take this rank's part of moments after so many steps, box by box; None: of no such moment yet."""
        self.optimizer.steps = steps
        self.optimizer.state = {}
        for shard in self.active.shards:
            for moment in self.optimizer.moments if shard.trainable else ():
                read = reader(moment, shard)
                if read is not None:
                    value = fill_kept(shard, read, self.transport.device)
                    self.optimizer.state.setdefault(shard.name, {})[moment] = value

    def owned_values(self) -> dict[str, Tensor]:
        """What this rank owns of every parameter and buffer, flat; may share memory with what is trained."""
        return self._owned(self.active.shards)

    def owned_moments(self) -> dict[str, dict[str, Tensor]]:
        """The same of moments, by torch's name for them, as far as steps have made them."""
        shards = {shard.name: shard for shard in self.active.shards}
        return {
            moment: {
                name: owned_value(shards[name], of[moment])
                for name, of in self.optimizer.state.items()
                if moment in of
            }
            for moment in self.optimizer.moments
        }

    @property
    def _saved(self) -> list[Shard]:
        return [shard for shard in self.active.shards if shard.persistent]

    def _owned(self, shards: Iterable[Shard]) -> dict[str, Tensor]:
        """The elements that this rank owns, flat."""
        return {shard.name: owned_value(shard, trained_value(shard, self.active.state)) for shard in shards}

    def _gather(self, tensors: Mapping[str, Tensor], everywhere: bool) -> dict[str, Tensor]:
        collection = Collection(self.transport, self.active.shards, tensors)
        wholes: Iterator[tuple[str, Tensor | None]]
        wholes = collection.everywhere() if everywhere else collection.at_root()
        gathered = {name: whole for name, whole in wholes if whole is not None}
        aliases = {alias: name for alias, name in self.active.program.aliases.items() if name in gathered}
        return gathered | {alias: gathered[name] for alias, name in aliases.items()}
