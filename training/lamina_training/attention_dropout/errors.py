"""What a user can mend about attention dropout."""

from __future__ import annotations

from lamina_index.errors import LaminaError


class AttentionDropoutError(LaminaError):
    """The encoder, a rate table or the training loop does not fit the attention dropout."""
