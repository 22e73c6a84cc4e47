"""Convert a model between file layouts, and compare it with the other implementation before publishing the result."""

from pellucid.conversion.convert_model import Converted as Converted
from pellucid.conversion.convert_model import convert as convert
from pellucid.conversion.opened_model import OpenedModel as OpenedModel
from pellucid.conversion.opened_model import read_model as read_model
