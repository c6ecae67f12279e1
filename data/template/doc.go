// Package template renders conversations with the Jinja templates that Hugging Face models carry, and says which part
// of the text the assistant wrote.
//
// [Parse] reads a template once; [Template.Render] turns an [Input] into text, equal to the byte to what
// apply_chat_template of transformers gives (4.57, Jinja 3.1); [Template.FindTurns] adds the parts that count in
// the loss. [ParseJSON] makes the [Value]s of messages and tools, and [ReadConfig] finds the template in a tokenizer's
// configuration.
//
// # What it knows
//
// The Jinja that public chat templates use: 303 of them, from llama.cpp, TRL, axolotl, unsloth, vLLM,
// huggingface.js, minja and chujiezheng/chat_templates, were parsed and counted. They have set, if, for, macro,
// call, filter, raw and {% generation %}, break and continue, the functions range, namespace, dict, raise_exception
// and strftime_now; these filters: capitalize, count, d, default, dictsort, first, format, indent, int, items, join,
// last, length, list, lower, map, reject, rejectattr, replace, safe, select, selectattr, sort, string, title,
// tojson, trim, unique, upper; these tests: boolean, defined, eq, equalto, false, float, in, integer, iterable,
// mapping, ne, none, number, sequence, string, true, undefined; these methods: capitalize, endswith, format, get,
// items, keys, lower, lstrip, replace, rstrip, split, startswith, strip, title, upper, values. Anything else that
// Jinja or Python knows is an error that names it, by [Parse] where a name tells, so that nothing passes
// for something else.
//
// It runs as transformers sets it up: trim_blocks and lstrip_blocks on, tojson that leaves HTML alone, and the
// immutable sandbox, in which a list's append is an error. Values are Python's: dicts keep their order, 1.0 prints
// with its point, a generator is true even if nothing is in it, str(None) is None. Integers of more than 64 bits are
// printed, and no more. What safe returns is a plain string, since nothing is escaped by itself here: '"'|safe +
// x|tojson keeps the quotes of x, of which Jinja's Markup makes &#34; (functionary-v3.1 has this, and means quotes).
//
// # A template is someone else's program
//
// It comes with a model from the net. It sees only its input, and cannot change it. [Limits] bound its
// output, the bytes that it makes, its steps and its depth, and the context ends it; sizes are checked before anything
// of that size is made. So a template can neither run forever, nor exhaust the memory, nor end the process. Anything
// unexpected is an [Error] with a line and a column.
//
// # Which part the assistant wrote
//
// The loss should count what the model will have to write when it is asked: everything from where the prompt ends to
// the token that ends its turn, with that token, without the header that the prompt brings along and without white
// space that the template puts after the turn. Only {% generation %} blocks mark that text, and few templates have
// them; [Template.FindTurns] says how it is found for the others.
//
// # Why not a library
//
// The Go ports of Jinja print Go's values where chat templates need Python's: gonja (v2.9), the best kept one, has
// dicts that are maps without an order, no limit or context for a render, no sandbox, and no place to record blocks.
package template
