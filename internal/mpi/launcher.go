package mpi

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Launcher names the program that started this process as a rank, in words for errors; None if no launcher did.
type Launcher string

// The launchers that are told apart.
const (
	None    Launcher = ""
	OpenMPI Launcher = "mpiexec of Open MPI"
	Hydra   Launcher = "mpiexec of MPICH"
	Slurm   Launcher = "srun"
	PMIx    Launcher = "a launcher with PMIx"
)

// Launch describes this process as its launcher does, in variables of the environment.
type Launch struct {
	Launcher Launcher
	Rank     int // from 0
	Size     int // the number of ranks; 0 if the launcher does not say it in the environment
}

// Detect tells from the environment which launcher started this process, and as which rank. args is the command line,
// for errors. A launcher that starts processes without MPI, such as torchrun, gives an error with the mpiexec line to
// use instead.
func Detect(getenv func(string) string, args []string) (Launch, error) {
	step := getenv("SLURM_STEP_ID") != "" // the script of a batch job is in no step, although it has SLURM_PROCID
	switch {
	case getenv("OMPI_COMM_WORLD_RANK") != "":
		return numbered(getenv, OpenMPI, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
	case getenv("PMI_RANK") != "" && (getenv("PMI_FD") != "" || getenv("PMI_PORT") != ""):
		l := Hydra
		if step && getenv("MPI_LOCALRANKID") == "" { // Hydra sets it, also where srun starts Hydra's proxies
			l = Slurm
		}
		return numbered(getenv, l, "PMI_RANK", "PMI_SIZE")
	case getenv("PMIX_RANK") != "" && getenv("PMIX_NAMESPACE") != "":
		if step {
			return numbered(getenv, Slurm, "PMIX_RANK", slurmSize(getenv))
		}
		return numbered(getenv, PMIx, "PMIX_RANK", "")
	case step && getenv("SLURM_PROCID") != "":
		l, err := numbered(getenv, Slurm, "SLURM_PROCID", slurmSize(getenv))
		if err != nil || l.Size <= 1 {
			return l, err
		}
		return Launch{}, fmt.Errorf("srun started this process as rank %d of %d without MPI, so the ranks cannot find "+
			"each other: give srun --mpi=pmix for Open MPI, or --mpi=pmi2 for MPICH; in a shell of srun, for one "+
			"process, unset %s", l.Rank, l.Size, Variables(getenv))
	case getenv("RANK") != "" && getenv("WORLD_SIZE") != "":
		return addresses(getenv, args, "torchrun", "RANK", "WORLD_SIZE", []string{getenv("MASTER_ADDR")})
	case getenv("SKYPILOT_NODE_RANK") != "":
		return addresses(getenv, args, "SkyPilot", "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES",
			strings.Fields(getenv("SKYPILOT_NODE_IPS")))
	}
	return Launch{}, nil
}

// Variables names the variables that have a process taken for a rank, for a user whose shell has inherited them.
func Variables(getenv func(string) string) string {
	names := slices.DeleteFunc([]string{"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_STEP_ID"},
		func(name string) bool { return getenv(name) == "" })
	return strings.Join(names, " ")
}

func slurmSize(getenv func(string) string) string {
	if getenv("SLURM_STEP_NUM_TASKS") != "" {
		return "SLURM_STEP_NUM_TASKS"
	}
	return "SLURM_NTASKS" // of the job, which may have more than the step
}

// maxRanks bounds the number of ranks that is believed. It is far above what clusters have.
const maxRanks = 1 << 20

// numbered reads the two variables that have the rank and the number of ranks. No name of the second leaves Size 0.
func numbered(getenv func(string) string, l Launcher, rank, size string) (Launch, error) {
	read := func(name string, least, most int) (int, error) {
		n, err := strconv.Atoi(getenv(name))
		if err != nil || n < least || n > most {
			return 0, fmt.Errorf("%s is %q in the environment, and %s sets a number from %d to %d there: "+
				"start this process by it, or remove the variable", name, getenv(name), l, least, most)
		}
		return n, nil
	}
	n := maxRanks
	launch := Launch{Launcher: l}
	var err error
	if size != "" {
		if launch.Size, err = read(size, 1, n); err != nil {
			return Launch{}, err
		}
		n = launch.Size
	}
	launch.Rank, err = read(rank, 0, n-1)
	if err != nil {
		return Launch{}, err
	}
	return launch, nil
}

// addresses gives the error for a launcher that starts processes and tells them addresses only; hosts are those known,
// the first one first. A single process is no error.
func addresses(getenv func(string) string, args []string, launcher Launcher, rank, size string,
	hosts []string) (Launch, error) {
	l, err := numbered(getenv, launcher, rank, size)
	if err != nil || l.Size == 1 {
		return Launch{}, err
	}
	if len(hosts) < l.Size {
		hosts = append(hosts, "...")
	}
	words := make([]string, len(args))
	for i, a := range args {
		words[i] = shell(a)
	}
	return Launch{}, fmt.Errorf("%s started this process as rank %d of %d, and its processes know addresses only, not "+
		"MPI: run on one host instead: mpiexec -n %d --host %s %s", launcher, l.Rank, l.Size, l.Size,
		strings.Join(hosts, ","), strings.Join(words, " "))
}

// shell quotes a word of a command line where a shell needs it.
func shell(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
			strings.ContainsRune("-_./=:,@%+", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
