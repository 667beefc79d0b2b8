"""Extensions of the daemons, and hooks of the clients, that are skipped, or whose failures reach too far."""

from tests.mutations.mutation import Mutation

_HOOKS = ("tests/client/test_hooks.py",)
_EXTENSIONS = ("tests/broker/test_extensions.py",)
_NAMES = ("tests/client/test_namespaces.py",)

MISTAKES = [
    Mutation(
        "send past the hooks by the compiled path",
        "client/loop_net.py",
        " or self._credentials is not None or self.hooks.rpc or ",
        " or self._credentials is not None or ",
        _HOOKS,
    ),
    Mutation(
        "send oneway requests past the hooks",
        "client/loop_net.py",
        "await (self.hooks.around(addr, command, send) if self.hooks.rpc else send(command))",
        "await send(command)",
        _HOOKS,
    ),
    Mutation(
        "handle requests of brokers past the hooks",
        "client/loop_net.py",
        "            return await self.hooks.around(addr, request, self._on_request)\n",
        "            return await self._on_request(request)\n",
        _HOOKS,
    ),
    Mutation(
        "share connections whatever hooks a client has",
        "client/faces.py",
        "key = *key, net.hooks.key",
        "key = *key, ()",
        _HOOKS,
    ),
    Mutation(
        "send what a hook has left, whatever it is",
        "client/hooks.py",
        "why = None if of is None else _what_is_wrong_with(of)",
        "why: str | None = None",
        _HOOKS,
    ),
    Mutation(
        "tell no hook of a request that has failed",
        "client/hooks.py",
        "            self._after(seen, addr, request, None, None)\n            raise\n",
        "            raise\n",
        _HOOKS,
    ),
    Mutation(
        "keep what a hook has added for the next request",
        "client/hooks.py",
        "request = attrs.evolve(command, ext_fields=dict(command.ext_fields))",
        "request = attrs.evolve(command)",
        _HOOKS,
    ),
    Mutation(
        "leave out messages whose filter has failed",
        "client/hooks.py",
        "returns=bool) is False for each",
        "returns=bool) is not True for each",
        _HOOKS,
    ),
    Mutation(
        "let an observer end the event loop",
        "client/observers.py",
        "isinstance(error, (*may_raise, KeyboardInterrupt))",
        "isinstance(error, (*may_raise, KeyboardInterrupt, SystemExit))",
        _HOOKS,
    ),
    Mutation(
        "read offsets of another namespace's queues",
        "client/queue_requests.py",
        "        queue = queue_within(self._namespace, queue)\n        code, kind = RequestCode.QUERY_CONSUMER_OFFSET",
        "        code, kind = RequestCode.QUERY_CONSUMER_OFFSET",
        _NAMES,
    ),
    Mutation(
        "handle batches of sends past the extensions",
        "remoting/extensions.py",
        '''        """As `around`, for a batch handler, which then gets its requests one by one."""
        if not self.wants(code):
''',
        '''        """As `around`, for a batch handler, which then gets its requests one by one."""
        if True:
''',
        _EXTENSIONS,
    ),
    Mutation(
        "continue with a request whose hook has failed",
        "remoting/extensions.py",
        "                self._call(each.before_request, addr, request, fails=True)\n",
        "                self._call(each.before_request, addr, request)\n",
        _EXTENSIONS,
    ),
]
