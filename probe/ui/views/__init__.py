"""The views of the page, in the order of their tabs. A view is one file; this is the one list of them."""

from probe.ui.views.bertviz import Bertviz
from probe.ui.views.compare import Compare
from probe.ui.views.effect import Effect
from probe.ui.views.heads import Heads
from probe.ui.views.learn import Learn
from probe.ui.views.masks import Masks
from probe.ui.views.sentences import Sentences
from probe.ui.views.source_target import SourceTarget
from probe.ui.views.steps import Steps
from probe.ui.views.verify import Verify
from probe.ui.views.view import View

VIEWS: tuple[type[View], ...] = (
    Compare,
    Masks,
    Steps,
    Verify,
    Heads,
    Sentences,
    Effect,
    Bertviz,
    SourceTarget,
    Learn,
)
