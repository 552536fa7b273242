"""The text that a model reads of a tool's result."""

from mcp_rl.toolserver.tools.results import read_result, truncate_middle


def text_of(*blocks, **fields):
    return read_result({"content": list(blocks), **fields}, 0.0).text


def test_text_blocks_are_joined_by_lines():
    assert text_of({"type": "text", "text": "one"}, {"type": "text", "text": "two"}) == "one\ntwo"


def test_binary_content_is_a_placeholder_with_type_and_size():
    assert text_of({"type": "image", "mimeType": "image/png", "data": "AAAA"}) == "[image: image/png, 3 bytes]"
    assert text_of({"type": "audio", "mimeType": "audio/wav", "data": "AA=="}) == "[audio: audio/wav, 1 bytes]"
    blob = {"type": "resource", "resource": {"uri": "file:///x", "mimeType": "application/gzip", "blob": "AAA="}}
    assert text_of(blob) == "[resource: file:///x, application/gzip, 2 bytes]"


def test_a_resource_with_text_is_read_and_a_link_is_named():
    resource = {"type": "resource", "resource": {"uri": "demo://1", "mimeType": "text/plain", "text": "inside"}}
    assert text_of(resource) == "[resource: demo://1, text/plain]\ninside"
    assert text_of({"type": "resource_link", "uri": "demo://2", "name": "two"}) == "[link: demo://2, two]"


def test_structured_content_is_read_where_there_is_no_other():
    result = read_result({"content": [], "structuredContent": {"result": 3.5}}, 0.0)
    assert (result.text, result.structured) == ('{"result": 3.5}', {"result": 3.5})


def test_malformed_results_do_not_raise():
    assert read_result({}, 0.0).text == ""
    assert text_of("no block", {"type": "text"}, {"type": "new-kind"}) == "\n[new-kind content]"


def test_an_error_is_marked():
    assert read_result({"content": [], "isError": True}, 0.0).is_error
    assert not read_result({"content": []}, 0.0).is_error


def test_short_texts_are_left_alone():
    assert truncate_middle("x" * 100, 100) == "x" * 100


def test_long_texts_keep_both_ends_and_say_how_long_they_were():
    text = "a" * 5000 + "b" * 5000
    cut = truncate_middle(text, 300)
    assert len(cut) == 300
    assert cut.startswith("aaaa")
    assert cut.endswith("bbbb")
    assert "[… cut: 10000 characters in all …]" in cut


def test_the_budget_may_be_in_tokens():
    def words(text):
        return len(text.split())

    cut = truncate_middle(" ".join(f"w{n}" for n in range(1000)), 50, words, "words")
    assert 40 <= words(cut) <= 50
    assert "1000 words in all" in cut
    assert cut.startswith("w0 ")
    assert cut.endswith("w999")
