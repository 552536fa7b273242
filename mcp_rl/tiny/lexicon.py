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

COMMON = tuple(
    """ability able about above accept access according account across action active actual additional address advanced
    after again against agent allow allowed allows along already also although always among amount analysis analyze
    another answer any api append application apply archive argument around array assign associated attach attempt
    attribute audio author automatic available avoid back background backup base basic batch because become before begin
    behavior being below best better between beyond binary bit block body branch branches break browser buffer build
    built button byte cache calculate call called cancel cannot capture card case cases category cause cell certain
    change changed changes channel character check child choice choose class clear click client clone close cloud code
    collection column combine command comment commit commits common compare complete completed complex component compute
    condition config configure confirm connect connection console constraint contact contain contained containing
    contains context continue control conversion copy correct cost could counter cover create created creates creating
    criteria current currently custom customer daily dashboard database dataset days deadline debug decode deep default
    define defined degree delay deleted deleting delta department deploy depth describe description design desired
    destination detail detailed details detect develop different difference digit dimension direct directories directory
    disable discover display distance document documents domain done double download draft drive duplicate during each
    earlier easy edge edit editing edits effect either element email empty enable encode encoding end endpoint engine
    ensure enter entire entities entity entries equal error errors even event every exact exactly example except exclude
    execute existing exists expected expires explain explicit export expression extension external extract failed
    failure false feature fetch field fields filter final finally find first fix flag float flow focus follow following
    follows force foreign form formatted found frame free frequency from full function further future gather general
    generate generated get given global goes goal grade grant graph greater grid groups guide handle has have head header
    health height help helps here hidden high highest hint history host hour hours however human icon idea identifier
    identify ignore image images implement import important improve include included includes including index indicate
    individual info initial initialize inner input insert inside insight insights inspect install instance instead integer
    interface internal interval invite issue issues item items itself join json keep kept key keyboard kind know known
    knowledge label labels language large last late latest launch layer layout lead learn least leave left length less
    level library like limit limited line lines link links list listing lists live load local locate location lock log
    login logs long longer look loop lower machine made main make makes manage manager manual many map mark master match
    matches matching maximum may mean means media member memory merge message messages metadata method middle minimum
    minute minutes missing mode model modify module moment monitor month months more most mouse move moved moving much
    multi multiple must name named names native nearest need needed nested network never new newest next no nodes none
    normal not notes nothing number object observation observations obtain occur often older once one only open opened
    operation operations optional options orders organization original other others output outside over overview overwrite
    own owner package page pages panel parallel parameter parameters parent parse part partial parts pass password past
    patch pattern patterns pending people per percent perform period permission permissions person phase phone physical
    pick picture piece place plain plan platform play please plugin point policy poll pool popular port position possible
    post posts power preferred prefix prepare present preserve press preview previous primary print priority private
    process produce product profile program progress project property protocol provide provided provider provides public
    publish pull purpose push quality queries query quick quote random range rate rather raw reach reached read reading
    ready real reason receive recent recently recursive recursively reduce refer reference refresh region register related
    relation relations relative release relevant remain remote remove removed removing rename render repeat replace reply
    repository request requests require required requires reserved reset resolve resource resources respond response
    restart restore restrict resulting retrieve retry return returned returns review revision right role root row rows
    rule run running safe same sample save scan schedule schema scope score screen script search searches second seconds
    section secure see select selected self send sensitive separate sequence serial series server servers service session
    sets setting settings several share shell short should show shows side sign similar simple simply since single site
    size sizes skip small snapshot so software solution some soon sort source sources space special specific specified
    specify split stage staged standard start started state statement static stats status step steps still stop storage
    store stored stream string strings strong structure structured style subject submit success successful successfully
    such suffix suggest summary supply support supported supports sure switch symbol sync syntax system tab table tables
    tags take task tasks team temp template term terms test text than that then there these thing think this those thought
    thoughts thread through thus time times timestamp timezone title today together token tool tools top topic total track
    transaction transform transport tree trigger true try turn two type types under undo unique unit units unknown unless
    unstaged until update updated updates upload upper usage use used useful user users uses using utility valid validate
    values variable various vector verify version versions via view virtual visible visit volume wait want warning was way
    web week weekly well were what whatever when where whether which while who whole whose why wide width will window with
    within without word words work working workflow workspace world would wrap write writes writing year years yes yet
    you your zero""".split()
)
"""Words of tools' names and descriptions, common in any software."""

FURTHER = tuple(
    """accepted accepting accepts accessed accessible act actions acts actually added adding addition addresses adds
    affect africa age airport algorithm alias aliases allowing almost alternate alternative america anchor anything
    anywhere appear appears appended appending applications applied applies applying appointment approach
    appropriate april arbitrary ascending ascii asia ask aspects assigned assignee assignment assume assumed assumes
    assuming atlantic attached attachment attachments attempted attempts attendee attendees attr attributes august
    australia authentication automatically avoids aware backslash backward backwards based bedroom beginning begins
    behaves behaviour big bind birthday bits blank blocking blocks board booking bool boolean bottom bound breaks
    broken budget buffered buffering buffers building bytes cached calculated callback callbacks caller calling
    calls cancelled canonical cards care categories caught caused causes cells certificate chain changing channels
    chapter char characters chars charset chat checked checking checkout checks children chunk chunks cleared
    closing colon come commands commonly compact compared compares comparing comparison comparisons compatibility
    compatible completely completes components compound compressed compression computed concatenated concrete
    conditions configuration configured conform connected connections consider considered consisting consists
    constant constants construct constructed construction consumed container controlled controlling controls
    convenience convenient convention converted converting converts copied copies copying core correspond
    corresponding corresponds cosine counting counts course cpu csv currency cursor customers customized deal
    debugging december decide decimal declared decoded decoding decrypt defaulting defaults defines defining
    definition definitions degrees delimited delivery depend dependent depending depends deprecated derive derived
    descendant descendants descending described describes describing designed detected determined determines
    deviation dictionaries dictionary diff differ differences differs digits direction directly disabled discarded
    discount dish disk dispatch displayed displays distinguish distribution documentation documented dollar dots
    dotted dry dubai duplicates dynamically easier efficient elements elicitation else embedded emits employee
    employees enabled enclosed encoded encodes encodings encountered encrypt ending ends enough entered epoch
    equivalent escape escaped escapes especially est euro europe evaluated ever everything examples excluding
    exclusive executable executed executes executing execution exist exit exits expanded expect expects explicitly
    exports expressed expressions extended extensions extra extracted factory fail fall fallback family faster
    features february few filename filenames filesystem fill filters finished fixed flags floating flush followed
    footer forecast formats formatting former forms forward fragment framework front fully functionality functions
    garbage gender generally generates generating generic genre gives giving glob gmt gram grams group guaranteed
    guest guests handled handler handlers handles handling handy happens hard hash having headers heading helper hex
    hexadecimal hierarchy hold holds home hong hook hostname http https humidity identical identified identifies
    identifying ignored ignoring immediately implementation implementations implemented implementing implements
    implied imported importing inbox inclusion incoming incomplete indent indentation indented indicated indicates
    indicating ingredient ingredients inherit inherited initialized initially inputs inserted installation installed
    int integers intended interactive interested interesting interfaces intermediate internally interpreted
    inventory invocation invoke invoked invokes invoking isbn iso istanbul iterate iteration january jpeg july june
    keeping keeps keywords kilogram kilometer kitchen knows kolkata kong lagos lake lamp later latitude latter
    leading leaving legacy legal letter levels libraries likely linked listed listening liter literal little living
    loaded loader loading locale localhost located locks logging logical longest longitude looked looking looks
    lookup loops magic mainly major making management manages manipulation mapped mapping march markdown marked
    markers marks matched mcp meaning meaningful meant mechanism median members mentioned menu meter meters mexico
    might mile miles milestone milliseconds minimal minor mixed modification modules monthly moscow mostly moves
    nairobi natural necessarily necessary needs neither newline newlines newly normalized normally notebook november
    null numeric objects obtained occurred occurrence occurrences occurs october omitted ones onto opening operate
    operating opposed optimization optionally ordered ordinary origin otherwise our outputs pacific packages packed
    packet pair pairs paragraph paragraphs param parsed parsers parses parsing particular passed passenger passing
    pathname paulo payload pdf percentile performance performed perhaps pid pipe placed places platforms png pointed
    pointer points portable portion positional positive possibly postal potential pound pounds preceded preceding
    prefixed prepended presence pressing presumably pretty prevent previously prime printable printed printing
    prints prior probably problem problems processed processes processing processor produced produces proper
    properly properties protocols providing publisher pure purposes qualified queue quoted quotes raises raising
    rating readable reader readings reads really reasoning reasons received recipient recognize recognized
    recommended recursion reduces refers reflect regardless regex registered registering registry regular releases
    remaining remains reminder reminders removes replaced replacement replaces replacing replies reported represent
    representation represented representing represents requested reservation resolved respectively responses
    responsible rest restaurant retrieved returning reverse roles routine rules runs runtime safely salary sampling
    saturday scheduled scheme scripts searched sections security seed seek selection selector semantics sender
    sending sends sense sent separated separator separators september sequences setup shanghai sheet sheets shipment
    shipping shutdown signal signature silently similarly simplest simulated sine singapore skipped sku slash
    slightly socket sockets something sometimes spaces specialized specification specifies specifying speed sprint
    sql sqlite stack starting starts statements statistics stops storing str streams street strict strip stripped
    stripping sub subscription subscriptions subsequent suitable suite supplied supplier supporting svg sydney
    symbolic symbols symlink symlinks systems tabs taken takes taking tangent target tax tells temporary terminal
    terminated terminates terminating tested testing their them therefore thermostat they things though threads
    thumbnail thursday timeout tiny todo todos tomorrow toronto town trace trailing treated tries triple truncated
    trying tuesday turned turns typically typing undefined underlying unicode unlike unsupported upon urls usable
    username usual usually utc uuid variables variance variant vehicle very waiting wants warehouse warnings webpage
    website wednesday weeks whenever whitespace wildcard wind workbook writable writer written xml yaml yesterday
    zip""".split()
)
"""More such words: of docstrings (most of those that six or more of Python's own use), and of what servers are about."""
