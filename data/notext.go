package data

import (
	"fmt"
	"slices"
	"strings"
)

// notText has the endings of files that are no texts, although some could be read as one, and what to do with such a
// file.
var notText = []struct{ endings, how string }{
	{".arrow .feather .orc .avro .xlsx .xls .xlsb .ods .h5 .hdf5 .npy .npz .mat .pkl .pickle .lance .db .sqlite " +
		".sqlite3 .duckdb .rds .msgpack .tfrecord .lmdb .mdb", "convert it to JSON lines, CSV or Parquet"},
	{".jl .jsonlines", "if it has a JSON object on each line, rename it to .jsonl"},
	{".parquet", "unpack it: pages of Parquet files are packed already"}, // of a packed one
	{".zip .tar .tgz .tbz2 .txz .7z .rar .bz2 .xz .lz .lzma .lz4 .br .z .cab .iso .dmg .jar .whl .deb .rpm .apk",
		"unpack it, or pack each file with gzip or zstd"},
	{".pdf .djvu .docx .doc .docm .odt .pptx .ppt .odp .epub .mobi .azw3 .pages .numbers", "extract its text"},
	{".png .jpg .jpeg .gif .webp .bmp .tif .tiff .ico .heic .heif .avif .psd .mp3 .wav .flac .ogg .opus .m4a .aac " +
		".wma .mp4 .mov .avi .mkv .webm .mpeg .mpg .wmv .flv", "extract its text"},
	{".safetensors .gguf .ggml .pt .pth .ckpt .onnx .bin .model .exe .dll .so .dylib .o .a .class .pyc .wasm .ttf " +
		".otf .woff .woff2", "name the files with text by a glob"},
}

// checkEndings refuses files that would be one text each, and are something else by their names.
func checkEndings(names []string) error {
	for _, name := range names {
		ending := unpacked(name)
		if ending == "" || isParquet(name) {
			continue
		}
		for _, kind := range notText {
			if slices.Contains(strings.Fields(kind.endings), ending) {
				return fmt.Errorf("%s: a file ending in %s is no text and is not read: %s", name, ending, kind.how)
			}
		}
	}
	return nil
}
