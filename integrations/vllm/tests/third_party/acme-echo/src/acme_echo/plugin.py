"""The hooks of `acme_echo`."""

from specdec_core import hookimpl
from specdec_core.traits import MethodTraits


class EchoPlugin:
    """One method, one option, one thing that a request may set."""

    @hookimpl
    def specdec_method_options(self, method):
        from acme_echo.options import EchoOptions

        return EchoOptions

    @hookimpl
    def specdec_request_options(self, method):
        from acme_echo.options import EchoRequestOptions

        return EchoRequestOptions

    @hookimpl
    def specdec_method_traits(self, ctx):
        return MethodTraits(rows="none", draft_distribution="deterministic", weights="none")

    @hookimpl
    def specdec_make_proposer(self, ctx):
        from acme_echo.proposer import EchoProposer

        return EchoProposer(ctx.options.reach)


plugin = EchoPlugin()
