module github.com/millrace/millrace/data/parquet/oracle

go 1.26.0

require (
	github.com/google/go-cmp v0.7.0
	github.com/millrace/millrace v0.0.0
	github.com/parquet-go/parquet-go v0.32.0
	pgregory.net/rapid v1.3.0
)

require (
	github.com/andybalholm/brotli v1.3.0 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/klauspost/compress v1.20.3 // indirect
	github.com/parquet-go/bitpack v1.0.0 // indirect
	github.com/parquet-go/jsonlite v1.0.0 // indirect
	github.com/pierrec/lz4/v4 v4.1.21 // indirect
	github.com/twpayne/go-geom v1.6.1 // indirect
	golang.org/x/sys v0.49.0 // indirect
	google.golang.org/protobuf v1.34.2 // indirect
)

replace github.com/millrace/millrace => ../../..
