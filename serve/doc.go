// Package serve answers the requests of the page that shows runs, of this process and of others, over HTTP.
//
//   - [New] finds the runs of directories; [Server.Listen] takes an address, and [Server.Start] follows the runs and
//     answers.
//   - [Control] is the run of this process, if there is one, of which a user may ask something.
//   - [Freeze] reads runs for a page that stands alone.
//
// The page is package report/page; docs/serve.md has the requests and their documents.
//
// Invariants: files are read below the directories that were named, by the rule of internal/below, and no file is
// written. A run is followed by its files alone, so its steps do nothing for who watches. The memory of numbers is
// bounded, whatever the files have. What asks something of a run, and on an address that others can reach what reads,
// needs the token.
package serve
