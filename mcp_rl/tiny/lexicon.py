"""The words of the synthetic corpus: names of tools, the things that they act on, and phrases that ask for them."""

ACTIONS: dict[str, tuple[str, ...]] = {
    # the word in a tool's name: other words that people ask for it with
    "get": ("fetch", "retrieve", "show me", "give me", "look up"),
    "list": ("show all", "enumerate", "what are the", "name all"),
    "search": ("find", "look for", "query", "hunt for"),
    "create": ("make", "add a new", "set up", "build"),
    "delete": ("remove", "drop", "erase", "get rid of"),
    "update": ("change", "modify", "edit", "revise"),
    "send": ("deliver", "post", "pass on", "transmit"),
    "read": ("open", "load", "view", "show"),
    "write": ("save", "store", "put down", "record"),
    "move": ("transfer", "relocate", "shift", "bring"),
    "copy": ("duplicate", "clone", "replicate"),
    "convert": ("turn", "translate", "change", "transform"),
    "check": ("test", "verify", "see whether", "inspect"),
    "count": ("how many", "number of", "tally"),
    "sort": ("order", "arrange", "rank"),
    "start": ("begin", "launch", "run", "kick off"),
    "stop": ("end", "halt", "cancel", "finish"),
    "set": ("assign", "put", "fix"),
    "echo": ("repeat", "say", "say back", "return"),
    "format": ("lay out", "render", "style", "print"),
    "split": ("divide up", "break", "cut", "separate"),
    "join": ("combine", "merge", "connect", "put together"),
    "book": ("reserve", "schedule", "order", "arrange"),
    "measure": ("gauge", "determine", "assess"),
    "compare": ("contrast", "match", "weigh"),
    "estimate": ("guess", "predict", "approximate"),
    "describe": ("explain", "tell me about", "summarize", "outline"),
    "rename": ("call", "retitle", "relabel"),
    "toggle": ("switch", "flip", "trigger"),
    "simulate": ("model", "emulate", "try out"),
}

NUMERIC: dict[str, tuple[str, ...]] = {
    "add": ("plus", "sum", "total", "together", "increase", "combined"),
    "subtract": ("minus", "less", "take away", "difference", "decrease", "reduce"),
    "multiply": ("times", "product", "multiplied by", "scale"),
    "divide": ("over", "divided by", "quotient", "split", "ratio", "goes into", "share"),
    "power": ("to the power of", "raised to", "exponent", "raise"),
    "modulo": ("remainder", "mod", "left over"),
    "maximum": ("larger", "greater", "biggest", "higher"),
    "minimum": ("smaller", "lesser", "lowest", "lower"),
    "average": ("mean", "middle", "midpoint"),
    "blend": ("mix", "combine", "fuse"),
    "shift": ("move", "push", "slide"),
    "gap": ("distance", "spread", "apart"),
}

UNARY: dict[str, tuple[str, ...]] = {
    "square_root": ("root", "square root", "side of a square with area"),
    "square": ("squared", "second power"),
    "negate": ("opposite", "flip the sign of", "negative of"),
    "double": ("twice", "two times"),
    "halve": ("half of", "cut in half"),
    "round": ("nearest whole number to", "round off"),
    "absolute": ("magnitude", "size of"),
    "factorial": ("product up to", "ways to order"),
    "logarithm": ("log", "log of"),
    "invert": ("reciprocal", "one over"),
}

TEXTUAL: dict[str, tuple[str, ...]] = {
    "evaluate": ("work out", "compute", "calculate", "solve", "find the value of"),
    "parse": ("read", "interpret", "understand"),
    "calculate": ("work out", "figure out", "compute"),
    "simplify": ("reduce", "shorten", "tidy"),
    "check_formula": ("validate", "look over"),
}

PHRASES: dict[str, tuple[str, ...]] = {
    # everyday ways to ask for a number, {x} before {y} in the call; without a question mark at the end they are nouns
    "add": ("{x} plus {y}", "the sum of {x} and {y}", "{y} added to {x}", "{x} and {y} together", "{y} more than {x}",
            "the total of {x} and {y}", "{x} + {y}", "{x} increased by {y}", "{x} with {y} on top"),
    "subtract": ("{x} minus {y}", "{x} less {y}", "{y} taken from {x}", "{y} less than {x}", "{x} - {y}",
                 "the difference between {x} and {y}", "{x} reduced by {y}", "what is left of {x} without {y}",
                 "what is missing from {y} to {x}", "the rest when {y} leaves {x}",
                 "what to add to {y} to reach {x}"),
    "multiply": ("{x} times {y}", "the product of {x} and {y}", "{x} multiplied by {y}", "{x} * {y}", "{x} lots of {y}",
                 "the area of {x} by {y}", "{x} for {y} each", "{x} times as much as {y}", "{x} x {y}",
                 "the cost of {x} at {y} each"),
    "divide": ("{x} divided by {y}", "{x} over {y}", "the quotient of {x} and {y}", "{x} / {y}", "{x} shared by {y}",
               "the groups of {y} in {x}", "the ratio of {x} to {y}", "the size of {y} equal parts of {x}",
               "what makes {x} when multiplied by {y}", "the number of times that {y} fits into {x}",
               "how often {y} goes into {x}", "how many groups of {y} make {x}"),
    "power": ("{x} to the power of {y}", "{x} raised to {y}", "{x} ** {y}", "power {y} with base {x}", "{x}^{y}", "{x} to the power {y}",
              "{y} as the exponent of {x}", "{x} times itself {y} times", "{x} with the exponent {y}"),
    "modulo": ("{x} modulo {y}", "the remainder of {x} by {y}", "what is left over when {x} is divided by {y}"),
    "maximum": ("the larger of {x} and {y}", "the maximum of {x} and {y}"),
    "minimum": ("the smaller of {x} and {y}", "the minimum of {x} and {y}"),
    "average": ("the mean of {x} and {y}", "the middle between {x} and {y}"),
    "square_root": ("the square root of {x}", "the root of {x}", "sqrt({x})", "the side of a square of area {x}",
                    "the number whose square is {x}", "what gives {x} when squared", "what gives {x} times itself"),
    "square": ("{x} squared", "the square of {x}"),
    "double": ("twice {x}", "two times {x}"),
    "halve": ("half of {x}",),
}  # fmt: skip

ORDERS: dict[str, tuple[str, ...]] = {
    # the same as orders
    "add": ("add {x} and {y}", "add {y} to {x}", "increase {x} by {y}", "put {x} and {y} together", "sum {x} and {y}",
            "total {x} and {y}"),
    "subtract": ("subtract {y} from {x}", "take {y} from {x}", "reduce {x} by {y}", "take {y} away from {x}",
                 "lower {x} by {y}", "go down from {x} by {y}", "start with {x} and spend {y}"),
    "multiply": ("multiply {x} by {y}", "multiply {x} and {y}", "scale {x} by {y}", "multiply {x} with {y}"),
    "divide": ("divide {x} by {y}", "split {x} into {y} parts", "share {x} among {y}", "cut {x} into {y} pieces",
               "share {x} equally with {y}"),
    "power": ("raise {x} to {y}", "raise {x} to the power of {y}", "raise {x} to the {y}", "multiply {x} by itself {y} times"),
    "square_root": ("take the square root of {x}", "take the root of {x}", "find the square root of {x}"),
    "square": ("square {x}", "multiply {x} by itself"),
    "double": ("double {x}",),
    "halve": ("halve {x}", "cut {x} in half"),
    "round": ("round {x}", "round {x} off"),
}  # fmt: skip

NOUNS = tuple(
    """file directory folder path note message user account item order product price weather city country route map
    task project issue branch page record table row column value key word text document image photo song video event
    meeting calendar contact email phone address invoice payment balance ticket seat flight hotel room train car sensor
    device light door temperature time zone date timer alarm log report chart graph node edge shape color unit recipe
    book author store stock tag label comment review score game player team match language sentence topic article
    resource link reference summary environment annotation structure content operation session entry list size
    history status state config option template prompt answer question code query result number data""".split()
)

NAMES = tuple(
    """alice bob carol dave emma frank grace henry iris jack karen leo maria nina oscar paula quinn rosa sam tina uma
    victor wendy xavier yara zoe london paris tokyo berlin madrid rome cairo lima oslo delhi boston austin denver
    apple banana cherry lemon mango orange pear plum grape melon red green blue yellow black white purple silver
    north south east west spring summer autumn winter monday friday sunday morning evening night alpha beta gamma
    delta omega river mountain forest ocean island garden bridge tower castle market station harbor""".split()
)

FILLER = tuple(
    """quick brown lazy dog fox hello world good small large new old first last open closed main test demo sample
    simple common hidden public private shared local remote fast slow long short high low hot cold bright dark empty
    full early late ready safe happy quiet strong weak sharp smooth round flat deep wide narrow fresh clean""".split()
)

PARAMETERS: dict[str, tuple[str, ...]] = {
    "number": (
        "a b",
        "x y",
        "first second",
        "left right",
        "base exponent",
        "value other",
        "n m",
        "one two",
        "dividend divisor",
        "start end",
        "low high",
        "from to",
        "p q",
        "total part",
    ),
    "unary": ("value", "number", "x", "n", "amount", "a", "input", "radicand"),
    "expression": ("expression", "formula", "text", "input", "expr"),
    "integer": (
        "limit",
        "count",
        "page",
        "size",
        "steps",
        "offset",
        "depth",
        "head",
        "tail",
        "duration",
        "max",
        "index",
        "quantity",
        "year",
        "level",
        "resourceId",
    ),
    "string": (
        "name",
        "path",
        "message",
        "query",
        "title",
        "text",
        "id",
        "city",
        "location",
        "content",
        "label",
        "source",
        "destination",
        "pattern",
        "timezone",
        "key",
        "value",
        "language",
        "thought",
        "url",
        "prompt",
    ),
    "boolean": ("verbose", "recursive", "force", "includeImage", "dryRun", "active", "nextThoughtNeeded", "sorted"),
    "enum": ("unit", "mode", "format", "type", "order", "sortBy", "messageType", "status", "resourceType", "location"),
    "array": ("paths", "tags", "items", "names", "values", "numbers"),
}

ENUMS = (
    ("celsius", "fahrenheit"), ("error", "success", "debug"), ("json", "text", "html"), ("asc", "desc"),
    ("name", "size"), ("open", "closed", "all"), ("small", "medium", "large"), ("low", "high"), ("day", "week", "month"),
    ("New York", "Chicago", "Los Angeles"), ("Text", "Blob"), ("red", "green", "blue"), ("daily", "weekly"),
)  # fmt: skip
