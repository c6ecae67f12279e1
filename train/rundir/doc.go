// Package rundir keeps the directory of a run, and those elsewhere in which the run has checkpoints and state.
//
//   - [Identity] is run.json: which run a directory has. A run is its id and not the name of a directory, which another
//     run may get.
//   - [Home] holds the directories of a run that writes, and [Beginning] says how it starts in them.
//   - [Files.WeightsOf] finds the latest weights of a run for who only reads.
//   - [Placed] says which model has the name of a result, and [RecordFile] is a file of records, such as metrics.jsonl.
//
// A directory may have come from elsewhere, with its author's records and links. Nothing there is believed of files
// outside of it: links.go and outside.go say by which proofs such files are the run's. An error that names a key
// of the run file begins with it.
package rundir
