// Package hub finds models and data sets of the Hugging Face hub: in the cache of this machine, which Python's
// huggingface_hub shares, or else by downloading them into it.
//
// [FromEnv] reads where the cache and the server are. [Hub.Open] fixes a [Repo]'s revision to one commit and lists its
// files, as a [Snapshot]; [Snapshot.Fetch] makes chosen files appear on disk. The cache is
//
//	models--ORG--NAME/refs/REVISION             the commit that a branch or tag was at
//	datasets--ORG--NAME/snapshots/COMMIT/FILE   links into blobs
//	datasets--ORG--NAME/blobs/HASH              contents: SHA-256 of large files, git's blob SHA-1 of others
//	datasets--ORG--NAME/listings/COMMIT.json    what the commit has; of this package alone
//	.locks/datasets--ORG--NAME/HASH.lock        held while a blob is written
//
// Source: "Understand caching" in the huggingface_hub documentation.
//
// Invariants:
//
//   - The hub is not asked again for a revision that the cache knows: the next start of a run sees the same files. A
//     commit's files never change.
//   - A blob appears by one rename, after its length and hash were compared with the listing. The next process that
//     needs the blob resumes an interrupted download. Two processes never write one blob at the same time.
//   - A blob that is in the cache already is compared with the listing before a snapshot links to it. A cache that
//     every user of the machine can write is refused, and files under fixed names are not opened through links.
//   - Names are not trusted: a file is written only at a path inside its snapshot, and a blob only under a hash.
//   - The token goes to the endpoint alone, by https or on this machine, never to a server that the endpoint redirects
//     to. The user can allow http to a private network.
//   - The endpoint cannot have requests sent to addresses that it has no reason to name: see address.go.
//   - [Hub.Push] commits only after every large file has arrived, so a commit has all of its files or does not exist.
//   - With HF_HUB_OFFLINE nothing is sent.
package hub
