package train

import "github.com/millrace/millrace/train/traintest"

// The rig of all rooms, by short names.
var (
	newEnv       = traintest.NewEnv
	wrappedEnv   = traintest.WrappedEnv
	bytesConfig  = traintest.BytesConfig
	hybridConfig = traintest.HybridConfig
	rowsConfig   = traintest.RowsConfig
	writeConfig  = traintest.WriteConfig
	writeModel   = traintest.WriteModel
	writeWeights = traintest.WriteWeights
	writeTensors = traintest.WriteTensors
	write        = traintest.Write
	corpus       = traintest.Corpus
	files        = traintest.Files
	configOf     = traintest.ConfigOf
	budget       = traintest.Budget
	mustJSON     = traintest.MustJSON
	readFile     = traintest.ReadTensors
	refused      = traintest.Refused
	smallConfig  = traintest.SmallConfig
)

const turnTemplate = traintest.TurnTemplate
