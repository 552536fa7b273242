"""What every part of the configuration is."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Settings that belong together: frozen, no unknown keys; the line below a field says why its default is that."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)
