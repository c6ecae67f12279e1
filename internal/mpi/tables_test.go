package mpi

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	openMPI5 = "Open MPI v5.0.11, package: Open MPI user@localhost Distribution, ident: 5.0.11"
	mpich5   = "MPICH Version:      5.0.2\nMPICH Release date: Fri Sep 25 20:45:26 UTC 2026\n"
	intel    = "Intel(R) MPI Library 2021.13 for Linux* OS\n"
)

// Each library gets the table of its interface. The texts of Open MPI 5 and MPICH 5 are the beginnings of those that
// the wheels give. Those of Intel and Cray have the form that their users' public logs have. The others are written
// from memory, and Open MPI 6 and the interface to come are made up.
func TestTables(t *testing.T) {
	variables := func(name string) (uintptr, bool) {
		i := slices.Index([]string{"ompi_mpi_comm_world", "ompi_mpi_byte", "ompi_mpi_errors_return",
			"ompi_mpi_info_null"}, name)
		return uintptr(0x7000 + i), i >= 0
	}
	lacks := func(string) (uintptr, bool) { return 0, false }
	ompi := table{name: "Open MPI's", world: 0x7000, byte: 0x7001, errorsReturn: 0x7002, infoNull: 0x7003,
		shared: 0, serialized: 2}
	for _, c := range []struct {
		what, version string
		abi           int32
		symbol        func(string) (uintptr, bool)
		want          table
		err           string
	}{
		{"Open MPI 5", openMPI5, 0, variables, ompi, ""},
		{"Open MPI with another ABI's question", openMPI5, -1, variables, ompi, ""},
		{"Open MPI without its variables", openMPI5, 0, lacks, table{},
			"it says that it is Open MPI and lacks ompi_mpi_"},
		{"MPICH 5", mpich5, -1, lacks, mpichTable, ""},
		{"MPICH 4", "MPICH Version:\t4.1.2\n", 0, lacks, mpichTable, ""},
		{"Cray", "MPI VERSION    : CRAY MPICH version 8.1.29.6 (ANL base 3.4a2)\n", 0, lacks, mpichTable, ""},
		{"Intel", intel, 0, lacks, mpichTable, ""},
		{"MVAPICH", "MVAPICH Version      :\t4.0\n", 0, lacks, mpichTable, ""},
		{"MPICH with the Forum's", mpich5, 1, lacks, forumTable, ""},
		{"Open MPI with the Forum's", "Open MPI v6.0.0", 1, variables, forumTable, ""},
		{"a Forum's ABI to come", mpich5, 2, lacks, table{}, "version 2 of the MPI Forum's ABI"},
		{"another one", "LAM/MPI 7\nof old", 0, lacks, table{}, `it says that it is "LAM/MPI 7"`},
		{"no text", "", 0, lacks, table{}, `it says that it is ""`},
	} {
		got, err := chooseTable(c.version, c.abi, c.symbol)
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %+v, %v; want %+v, %q", c.what, got, err, c.want, c.err)
		}
	}
}

func TestLibraryOfAnotherLauncher(t *testing.T) {
	for _, c := range []struct {
		launcher Launcher
		version  string
		err      string
	}{
		{OpenMPI, openMPI5, ""}, {Hydra, mpich5, ""}, {Hydra, intel, ""},
		{Slurm, openMPI5, ""}, {Slurm, mpich5, ""}, {PMIx, mpich5, ""},
		{OpenMPI, mpich5, "it is MPICH Version: 5.0.2, which cannot join the ranks of mpiexec of Open MPI"},
		{Hydra, openMPI5, "it is Open MPI v5.0.11, which cannot join the ranks of mpiexec of MPICH"},
	} {
		if err := fits(c.launcher, c.version); (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
			t.Errorf("%s, %.20s: %v, want %q", c.launcher, c.version, err, c.err)
		}
	}
}

func TestRanksThatLauncherAndLibraryCountDifferently(t *testing.T) {
	one := joined{version: "MPICH Version: 5.0.2", rank: 0, size: 1}
	if err := agrees(Launch{Slurm, 0, 1}, one); err != nil {
		t.Error(err)
	}
	if err := agrees(Launch{PMIx, 0, 0}, one); err != nil {
		t.Error(err)
	}
	for _, l := range []Launch{{Slurm, 0, 4}, {Slurm, 3, 4}, {PMIx, 3, 0}} {
		err := agrees(l, one)
		if err == nil || !strings.Contains(err.Error(), "rank 0 of 1: launcher and library are not of one MPI") {
			t.Errorf("%+v: %v", l, err)
		}
	}
}

// The launcher's own directory comes first, then PATH's, then the linker's; relative directories and other parents are
// left out.
func TestPlaces(t *testing.T) {
	there := []string{"/opt/a/lib", "/opt/b/lib", "/opt/b/bin/mpiexec", "/opt/c/lib64", "/usr/lib64/openmpi/lib",
		"rel/lib", "rel/bin/mpiexec"}
	glob := func(pattern string) (found []string, err error) {
		for _, f := range there {
			if ok, err := filepath.Match(pattern, f); err != nil {
				return nil, err
			} else if ok {
				found = append(found, f)
			}
		}
		return found, nil
	}
	follow := func(string) (string, error) { return "/opt/c/bin/mpiexec.hydra", nil }
	list := func(l Launch, launcher, env string) string {
		return strings.Join(places(l, launcher, from(env), glob, follow), " ")
	}
	ompi := Launch{OpenMPI, 0, 2}
	if got, want := list(ompi, "/opt/a/bin/prterun", "PATH=rel/bin:/opt/b/bin"), ""+
		"/opt/a/lib/libmpi.so.40 /opt/a/lib/libmpi_abi.so.1 /opt/a/lib/libmpi.so "+
		"/opt/b/lib/libmpi.so.40 /opt/b/lib/libmpi_abi.so.1 /opt/b/lib/libmpi.so "+
		"/opt/c/lib64/libmpi.so.40 /opt/c/lib64/libmpi_abi.so.1 /opt/c/lib64/libmpi.so "+
		"libmpi.so.40 libmpi_abi.so.1 libmpi.so /usr/lib64/openmpi/lib/libmpi.so.40 "+
		"/usr/lib64/openmpi/lib/libmpi_abi.so.1 /usr/lib64/openmpi/lib/libmpi.so"; got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	got := list(Launch{Hydra, 0, 2}, "/opt/a/bin/bash", "OPAL_PREFIX=rel")
	if !strings.HasPrefix(got, "libmpi.so.12 libmpich.so.12 libmpi_abi.so.1 ") {
		t.Error(got)
	}
	if got := list(ompi, "/opt/a/bin/prterun", libraryEnv+"=/x/libmpi.so"); got != "/x/libmpi.so" {
		t.Error(got)
	}
	if got := list(ompi, "", "OPAL_PREFIX=/opt/[a"); !strings.HasPrefix(got, "libmpi.so.40 ") {
		t.Error(got)
	}
	for env, first := range map[string]string{"PMIX_RANK=1": "libmpi.so.40", "PMI_RANK=1": "libmpi.so.12"} {
		if got := names(Launch{Slurm, 0, 2}, from(env)); got[0] != first || !slices.Contains(got, "libmpi.so.40") {
			t.Errorf("%s: %q", env, got)
		}
	}
}

func TestErrorsOfTheSearch(t *testing.T) {
	l := Launch{Slurm, 0, 2}
	err := notFound(l, []string{"libmpi.so.40", "libmpi.so"}, nil)
	if want := "srun started this process, and no MPI library was found: neither next to the launcher and mpiexec " +
		"nor in the linker's and the usual directories is libmpi.so.40 or libmpi.so; install Open MPI or MPICH on " +
		"this host, or name the library's path in MILLRACE_MPI"; err.Error() != want {
		t.Errorf("%v\nwant\n%s", err, want)
	}
	broken := errors.New("libmpi.so.40: libpmix.so.2: cannot open shared object file")
	err = notFound(l, nil, []error{broken, errors.New("another")})
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), libraryEnv) {
		t.Error(err)
	}
	if _, err := Start(Launch{}, 1); err == nil || !strings.Contains(err.Error(), "mpiexec -n") {
		t.Error(err)
	}
}

func TestWho(t *testing.T) {
	for want, ranks := range map[string][]int{"rank 1 (host b)": {1}, "ranks 0 (host a) and 1 (host b)": {0, 1},
		"ranks 0 (host a), 1 (host b) and 2": {0, 1, 2}} {
		if got := who(ranks, []string{"a", "b"}); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
