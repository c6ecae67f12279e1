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
// All of Jinja but what needs other files or an extension: no extends, include, import, block, autoescape, do. It runs
// as transformers sets it up: trim_blocks and lstrip_blocks on, break and continue, {% generation %}, the functions
// raise_exception and strftime_now, tojson that leaves HTML alone, and the immutable sandbox, in which a list's append
// is an error. Values are Python's: dicts keep their order, 1.0 prints with its point, integers have any size, a
// generator is true even if nothing is in it, str(None) is None. What escape and safe return is a plain string, since
// nothing is escaped by itself here: '"'|safe + x|tojson keeps the quotes of x, of which Jinja's Markup makes &#34; (functionary-v3.1 has
// this, and means quotes).
//
// # A template is someone else's program
//
// It comes with a model from the net. It sees only what it is given, and can change none of it. [Limits] bound its
// output, the bytes that it makes, its steps and its depth, and the context ends it; sizes are checked before anything
// of that size is made. So a template can neither run for ever, nor take the memory, nor end the process. Anything
// unexpected is an [Error] with a line and a column.
//
// # Which part the assistant wrote
//
// The loss should count what the model will have to write when it is asked: everything from where the prompt ends to
// the token that ends its turn, with that token, without the header that the prompt brings along and without white
// space that the template puts behind the turn. Nobody writes that down but {% generation %}, which few templates
// have; [Template.FindTurns] says how it is found for the others.
//
// # Why not a library
//
// The Go ports of Jinja print Go's values where chat templates need Python's: gonja (v2.9), the best kept one, has
// dicts that are maps without an order, no limit or context for a render, no sandbox, and no place to record blocks.
package template
