package mpi

import (
	"strings"
	"testing"
)

// from makes a getenv of "A=1 B=2"; a semicolon stands for the end of a line in a value.
func from(text string) func(string) string {
	values := map[string]string{}
	for _, w := range strings.Fields(text) {
		name, value, _ := strings.Cut(w, "=")
		values[name] = strings.ReplaceAll(value, ";", "\n")
	}
	return func(name string) string { return values[name] }
}

func TestDetect(t *testing.T) {
	const job = "SLURM_JOB_ID=77 SLURM_PROCID=2 SLURM_NTASKS=4 "
	const step = job + "SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=3 "
	for _, c := range []struct {
		what, env string
		want      Launch
		err       string // a part of the error
	}{
		{"nothing", "HOME=/root PATH=/bin", Launch{}, ""},
		{"Open MPI", "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 PMIX_RANK=3 PMIX_NAMESPACE=a",
			Launch{OpenMPI, 3, 4}, ""},
		{"Open MPI through srun", step + "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=4", Launch{OpenMPI, 0, 4}, ""},
		{"Hydra", "PMI_RANK=1 PMI_SIZE=2 PMI_FD=9 MPI_LOCALRANKID=1", Launch{Hydra, 1, 2}, ""},
		{"Hydra with a port", "PMI_RANK=0 PMI_SIZE=2 PMI_PORT=h:1 MPI_LOCALRANKID=0", Launch{Hydra, 0, 2}, ""},
		{"Hydra through srun", step + "PMI_RANK=1 PMI_SIZE=2 PMI_FD=9 MPI_LOCALRANKID=1", Launch{Hydra, 1, 2}, ""},
		{"numbers of a PMI that is not there", "PMI_RANK=1 PMI_SIZE=2", Launch{}, ""},
		{"srun with PMI 2", step + "PMI_RANK=2 PMI_SIZE=3 PMI_FD=9", Launch{Slurm, 2, 3}, ""},
		{"srun with PMIx", step + "PMIX_RANK=2 PMIX_NAMESPACE=slurm.77.0", Launch{Slurm, 2, 3}, ""},
		{"an older srun with PMIx", "SLURM_STEP_ID=0 SLURM_NTASKS=4 PMIX_RANK=2 PMIX_NAMESPACE=s",
			Launch{Slurm, 2, 4}, ""},
		{"PMIx alone", "PMIX_RANK=5 PMIX_NAMESPACE=a", Launch{PMIx, 5, 0}, ""},
		{"the script of a batch job", job, Launch{}, ""},
		{"one task of srun", "SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=1", Launch{Slurm, 0, 1}, ""},
		{"srun without MPI", step, Launch{}, "srun started this process as rank 2 of 3 without MPI, so the ranks " +
			"cannot find each other: give srun --mpi=pmix for Open MPI, or --mpi=pmi2 for MPICH; in a shell of srun, " +
			"for one process, unset SLURM_STEP_ID"},
		{"torchrun", "RANK=1 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1", Launch{},
			"torchrun started this process as rank 1 of 2, and its processes know addresses only, not MPI: " +
				"run on one host instead: mpiexec -n 2 --host 10.0.0.1,... millrace train 'my run.yaml'"},
		{"one process of torchrun", "RANK=0 WORLD_SIZE=1 MASTER_ADDR=localhost", Launch{}, ""},
		{"SkyPilot", "SKYPILOT_NODE_RANK=0 SKYPILOT_NUM_NODES=2 SKYPILOT_NODE_IPS=10.0.0.1;10.0.0.2", Launch{},
			"mpiexec -n 2 --host 10.0.0.1,10.0.0.2 millrace train"},
		{"one node of SkyPilot", "SKYPILOT_NODE_RANK=0 SKYPILOT_NUM_NODES=1 SKYPILOT_NODE_IPS=10.0.0.1", Launch{}, ""},
		{"a rank that is no number", "OMPI_COMM_WORLD_RANK=x OMPI_COMM_WORLD_SIZE=4", Launch{},
			`OMPI_COMM_WORLD_RANK is "x" in the environment, and mpiexec of Open MPI sets a number from 0 to 3 there`},
		{"a rank too many", "PMI_RANK=2 PMI_SIZE=2 PMI_FD=9 MPI_LOCALRANKID=0", Launch{}, `PMI_RANK is "2"`},
		{"no size", "OMPI_COMM_WORLD_RANK=0", Launch{}, `OMPI_COMM_WORLD_SIZE is ""`},
		{"a size of 0", "PMI_RANK=0 PMI_SIZE=0 PMI_FD=9", Launch{}, `PMI_SIZE is "0"`},
		{"a size that is absurd", "RANK=0 WORLD_SIZE=99999999999", Launch{}, `WORLD_SIZE is "99999999999"`},
	} {
		got, err := Detect(from(c.env), []string{"millrace", "train", "my run.yaml"})
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %+v, %v; want %+v, %q", c.what, got, err, c.want, c.err)
		}
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: the error has two lines: %q", c.what, err)
		}
	}
}

// All variables that a shell has inherited from a launcher are named: without one of them the next would count.
func TestVariables(t *testing.T) {
	got := Variables(from("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 PMIX_RANK=0 PMIX_NAMESPACE=a"))
	if got != "OMPI_COMM_WORLD_RANK PMIX_RANK" {
		t.Error(got)
	}
}

func TestShellQuotes(t *testing.T) {
	for word, want := range map[string]string{"a-b/c.d=1": "a-b/c.d=1", "": "''", "a b": "'a b'",
		"it's": `'it'\''s'`, "$x": "'$x'"} {
		if got := shell(word); got != want {
			t.Errorf("%q becomes %s, want %s", word, got, want)
		}
	}
}
