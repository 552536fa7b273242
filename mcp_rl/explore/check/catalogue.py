"""The kinds of findings of `servers check`: observation, consequence for training, advice."""

from mcp_rl.explore.check.findings import Kind, Level

# fmt: off
OK, NOTE, PROBLEM = Level.OK, Level.NOTE, Level.PROBLEM

# The listing

TOOL_LEFT_OUT = Kind(
    PROBLEM, "schemas", "{warning}",
    "No model ever sees this tool.",
    "Correct its entry in the server's listing; the other tools are used without it.",
)
BAD_INPUT_SCHEMA = Kind(
    PROBLEM, "schemas", "The inputSchema of {tool} is not valid JSON Schema: {why}",
    "Arguments are sent unchecked, and the model is never told what it got wrong.",
    "Correct the schema; https://json-schema.org/draft/2020-12 is the default dialect.",
)
BAD_OUTPUT_SCHEMA = Kind(
    PROBLEM, "schemas", "The outputSchema of {tool} is not valid JSON Schema: {why}",
    "Clients that check results refuse every result of this tool.",
    "Correct the schema; https://json-schema.org/draft/2020-12 is the default dialect.",
)
VALID_SCHEMAS = Kind(OK, "schemas", "All schemas are valid JSON Schema of objects ({tools}).")
CLEANED_NAMES = Kind(
    NOTE, "schemas", "The names of {number} tools break OpenAI's rules: {names}.",
    "The model uses the cleaned names; calls and records use the server's own.",
    "Nothing, unless other clients are to use the server: name tools with letters, digits, _ and - alone.",
)
NO_DESCRIPTION = Kind(
    NOTE, "schemas", "{names}: no description.",
    "A model has only the names to go by.",
    "Describe in a sentence what each tool does and returns.",
)
COSTLY_SCHEMAS = Kind(
    NOTE, "schemas", "The schemas cost {tokens:,} tokens of mcp-rl/tiny in every prompt.",
    "They fill the built-in model's context of 8,192 tokens, and every episode pays for them.",
    "Choose tools: tools.include='[\"get_*\"]' or tools.exclude, or take a model with more context.",
)
OFFER_INCOMPLETE = Kind(
    NOTE, "schemas", "{warning}",
    "The model is offered that much less.",
    "Remove it from offer.",
)
NOT_LISTED_AGAIN = Kind(
    PROBLEM, "schemas", "The server does not list its tools a second time: {why}",
    "A lost session cannot be opened again.",
    "Answer tools/list at any time.",
)
LISTED_DIFFERENTLY = Kind(
    PROBLEM, "schemas", "The server lists different tools when asked again.",
    "A run stops where the listing changes, since what was learned may no longer fit.",
    "Keep the listing the same while the server runs.",
)
LISTING_CHANGED = Kind(
    PROBLEM, "schemas", "The server lists different tools after some calls ({changed}).",
    "A run stops where the listing changes, since what was learned may no longer fit.",
    "Keep the listing the same, or train with --allow-schema-change.",
)

# Annotations

CALLED_READ_ONLY = Kind(
    PROBLEM, "annotations", "{tool} is annotated as read-only, and its name says that it changes something.",
    "Episodes would share its effects, and a call whose answer was lost is sent again.",
    "Set readOnlyHint to false; if the name misleads, rename the tool.",
)
CONTRADICTORY_HINTS = Kind(
    NOTE, "annotations", "{tool} is annotated as both read-only and destructive.",
    "It is treated as read-only, since destructiveHint then has no meaning.",
    "Remove one of the two.",
)
CALLED_CHANGING = Kind(
    NOTE, "annotations", "{tool} is annotated as changing things, and its name says that it looks something up.",
    "Without a declared isolation, it makes each rollout need its own process, which is slow.",
    "Set readOnlyHint to true if it changes nothing.",
)
UNANNOTATED = Kind(
    NOTE, "annotations", "{number} of {all} tools do not say whether they change anything: {names}.",
    "They are judged by their names, and their calls are not sent again when an answer is lost.",
    "Annotate them with readOnlyHint, destructiveHint and idempotentHint.",
)
ANNOTATED = Kind(OK, "annotations", "All tools say whether they change anything, and their names agree.")
SNEAKY = Kind(
    PROBLEM, "annotations",
    "{names} only looks things up, judging by annotations and name, and yet its calls change the result of {other}.",
    "Episodes see what others did, and nothing resets it.",
    "Set readOnlyHint to false, and declare the isolation of episodes.",
)
REMEMBERS = Kind(
    PROBLEM, "annotations",
    "{names} only looks things up, judging by annotations and name, and yet its result depends on earlier calls.",
    "Episodes that share the server see what others did; with a process each they do not.",
    "Set readOnlyHint to false, and declare the isolation of episodes (--isolation per-rollout).",
)

# Isolation and reset

UNDECLARED_AND_UNANNOTATED = Kind(
    PROBLEM, "isolation",
    "No isolation is declared, no annotation says that anything changes, and {names} sound as if they changed things.",
    "All rollouts would share one server, and each would see what the others did.",
    "Declare it: {quick}--isolation per-rollout (--isolation shared if they change nothing).",
)
UNDECLARED_OWN_PROCESS = Kind(
    NOTE, "isolation", "No isolation is declared; {names} may change things.",
    "Each rollout gets a new process and its own temporary folder ({{tmp}}); files, databases and services elsewhere "
    "stay shared.",
    "Declare it: {quick}--isolation per-rollout if a new process is enough.",
)
UNDECLARED_OWN_CONNECTION = Kind(
    NOTE, "isolation", "No isolation is declared; {names} may change things.",
    "Each rollout gets its own connection; whether rollouts see each other is up to the server.",
    "Declare it: {quick}--isolation per-rollout if that is enough.",
)
NO_RESET_TOOL = Kind(
    PROBLEM, "reset", "The server has no tool {tool} to reset it with.",
    "No episode can begin.",
    "Name a tool that the server lists.",
)
RESET_FAILED = Kind(
    PROBLEM, "reset", "The server could not be reset: {why}",
    "No episode can begin.",
    "The reset must work without arguments, whatever happened before.",
)
SLOW_RESET = Kind(NOTE, "reset", "A reset takes {seconds:.1f} s.", "Every episode begins with a reset.")
NOT_SEEN = Kind(
    NOTE, "isolation", "The isolation of episodes could not be observed: {why}.",
    "It is taken on trust.",
    "Give the server a tool without required arguments that lists its state, annotated read-only.",
)
NO_SECOND_EPISODE = Kind(
    PROBLEM, "{check}", "The second episode could not be played: {why}",
    "Every episode after the first is a fault.",
    "Correct the reset, or make the server able to start again and again.",
)
EPISODES_TOO_SLOW = Kind(
    PROBLEM, "isolation", "Three episodes were not played within {seconds:g} s.",
    "A run would stand still.",
    "Look at how long the server takes to start, to reset and to close.",
)
STATE_LEFT_BEHIND = Kind(
    PROBLEM, "{check}",
    "After an episode that called {changes}, the next one does not begin as the first one did: {look} said {was}, and "
    "now says {now}.",
    "{means}",
    "{do}",
)
NOTHING_LEFT_BEHIND = Kind(OK, "{check}", "An episode leaves nothing to the next one ({looks} agree).")
SEEN_BY_OTHERS = Kind(
    PROBLEM, "isolation",
    "Of two episodes at once, one sees what the other did: {look} said {was}, and now says {now}.",
    "Rollouts disturb each other, and right answers count as wrong.",
    "{do}",
)
UNSEEN_BY_OTHERS = Kind(OK, "isolation", "Of two episodes at once, neither sees what the other does.")

# Calls

CHANGEABLE_RESULT = Kind(
    NOTE, "determinism", "{names}: two equal calls had different results.",
    "An answer that was right when the task was written may be wrong later; generate leaves such tools out. Clocks are "
    "an example.",
    "Write scenarios with a custom verifier for it, or leave it out (tools.exclude).",
)
EQUAL_RESULTS = Kind(OK, "determinism", "Equal calls agree ({tools} that look things up).")
NO_RESULT_AT_ALL = Kind(
    PROBLEM, "calls", "No call of any tool gave a result ({calls} were tried).",
    "generate would find nothing to make tasks of.",
    "Read the errors above for what the server needs: a network, a program, a key in its environment.",
)
RESULTS_COME = Kind(OK, "calls", "{worked} of {calls} calls of {tools} gave a result.")
NO_ANSWER = Kind(
    PROBLEM, "calls", "{tool} gave no answer to {arguments}: {why}",
    "The episode is a fault: it is discarded and played again.",
    "Make it answer within {seconds:g} s, or raise tool_deadlines in the plugin; tools.exclude leaves it out.",
)
NEVER_CALLED = Kind(
    NOTE, "calls", "Not called: {names}, since {why}.",
    "Nothing is known about them, and generate writes no task for them.",
    "Give their plugin argument_samplers, or put examples into the schemas.",
)
ALWAYS_REFUSED = Kind(
    NOTE, "calls", "{names} refused all {calls} sampled calls, for example {arguments}: {said}.",
    "generate may find no task for it either.",
    "State in the schema what it takes (enum, pattern, examples), or give its plugin an argument_samplers entry.",
)
HELD_BACK = Kind(
    NOTE, "calls", "Not called: {names}. Reason: {why}.",
    "Nothing is known about what they do; generate leaves them out too.",
    "Declare the isolation (in a plugin, or --isolation per-rollout), or try them here with --call-all.",
)
LEFT_PROCESSES = Kind(
    PROBLEM, "processes", "Calls of {tool} left {number} processes running.",
    "A run makes thousands of calls: the machine fills up until it stands still.",
    "Wait for what the tool starts, or end it before answering.",
)
MISMATCHED_RESULT = Kind(
    PROBLEM, "results", "A result of {tool} does not match its outputSchema: {why}",
    "Many clients refuse it, so that the model gets an error for a right call.",
    "Correct the schema or the result.",
)
LONG_RESULT = Kind(
    NOTE, "results", "A result of {tool} has {characters:,} characters.",
    "Long results are cut in the middle, and fill the context.",
    "Let the tool return pages, or take a model with more context (rollout.max_result_tokens).",
)
EMPTY_RESULT = Kind(
    NOTE, "results", "{tool} gave an empty result.",
    "A model cannot tell whether anything happened.",
    "Say in a word what was done.",
)
MATCHING_RESULTS = Kind(OK, "results", "Results match the outputSchema ({tools}).")

# Hardship

MISTAKES_UNANSWERED = Kind(
    PROBLEM, "mistakes", "{number} of {calls} wrong calls got no answer, the first: {call}: {why}",
    "Models make such mistakes all the time; each one spoils the episodes on this server.",
    "Answer wrong arguments with a tool error (isError) in words.",
)
MISTAKES_ACCEPTED = Kind(
    NOTE, "mistakes", "{names}: a wrong call got a result and no error.",
    "mcp-rl checks arguments before sending them, so the model is told all the same; other clients may not.",
    "Check arguments against the schema in the server too.",
)
MISTAKES_REFUSED = Kind(OK, "mistakes", "{calls} wrong calls were answered with an error, and the server lives on.")
UNICODE_UNANSWERED = Kind(
    PROBLEM, "unicode", "{tool} gave no answer to text with letters of other scripts: {why}",
    "Requests and names hold such letters; the episode is a fault.",
    "Read and write UTF-8 everywhere (PYTHONUTF8=1, encoding='utf-8').",
)
UNICODE_GARBLED = Kind(
    PROBLEM, "unicode", "{tool} returns {said} for {sent}.",
    "The model reads garbled text, so right answers count as wrong.",
    "Read and write UTF-8 everywhere (PYTHONUTF8=1, encoding='utf-8').",
)
UNICODE_KEPT = Kind(OK, "unicode", "Letters of other scripts survive ({tool}).")
RESULTS_MIXED_UP = Kind(
    PROBLEM, "concurrency",
    "With {in_flight} calls in flight at once, {number} had different results than one after another; {tool} "
    "{arguments}: {said}.",
    "Rollouts that share the server get each other's results.",
    "Share no data between calls{until}.",
)
CALLS_QUEUE = Kind(
    NOTE, "concurrency", "{in_flight} calls at once take as long as one after another ({seconds:.2g} s).",
    "Rollouts wait for each other's calls.",
    "Answer calls concurrently (async functions, threads), or use several servers: --isolation per-rollout.",
)
CONCURRENT = Kind(OK, "concurrency", "{in_flight} calls in flight at once have the same results as one after another.")

# The end

STILL_RUNNING = Kind(
    PROBLEM, "shutdown", "{number} processes are still there after the server was closed: {names}.",
    "They pile up until the machine is full.",
    "Make the server end what it starts.",
)
SLOW_TO_CLOSE = Kind(
    PROBLEM, "shutdown", "Closing took {seconds:.1f} s; {deadline:g} s are allowed.",
    "A server for each rollout is closed thousands of times.",
    "Exit when standard input ends, and on SIGTERM.",
)
ENDED_BY_SIGNAL = Kind(
    NOTE, "shutdown", "The server did not exit within {seconds:g} s of the end of its input; a signal ended it.",
    "Nothing is left; a server for each rollout takes that much longer.",
    "Exit when standard input ends.",
)
ORPHANS = Kind(
    NOTE, "shutdown", "The server exits and leaves {number} processes behind: {names}.",
    "mcp-rl ends them too; other clients do not.",
    "End what the server starts before it exits.",
)
CLEAN_EXIT = Kind(OK, "shutdown", "The server and everything that it started ended within {seconds:.2g} s.")
STRAY_OUTPUT = Kind(
    NOTE, "stdout", "{lines} on the server's standard output were not JSON-RPC, the first {first}.",
    "mcp-rl skips them; other clients end the session.",
    "Write logs to standard error.",
)
