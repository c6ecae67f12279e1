package mpi

import (
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// libraryEnv names the library to use, by its path.
const libraryEnv = "MILLRACE_MPI"

// names are the library's file names in the order to try: the interface that is the launcher's own comes first. Their
// numbers are versions of the binary interface.
func names(l Launch, getenv func(string) string) []string {
	openMPI, mpich := []string{"libmpi.so.40"}, []string{"libmpi.so.12", "libmpich.so.12"}
	last := []string{"libmpi_abi.so.1", "libmpi.so"}
	switch {
	case l.Launcher == OpenMPI:
		return slices.Concat(openMPI, last)
	case l.Launcher == Hydra:
		return slices.Concat(mpich, last)
	case getenv("PMIX_RANK") != "":
		return slices.Concat(openMPI, mpich, last)
	}
	return slices.Concat(mpich, openMPI, last)
}

// places lists the paths to try, in order: next to the launcher that started this process, then where its variables and
// PATH say, then the dynamic linker's, then where distributions, clusters and pip put it. launcher is the path of the
// program that started this process. Roots that are not absolute are left out: whose directories they are depends on
// where the program was started. getenv, glob and follow are os.Getenv, filepath.Glob and filepath.EvalSymlinks but in
// tests.
func places(l Launch, launcher string, getenv func(string) string, glob func(string) ([]string, error),
	follow func(string) (string, error)) []string {
	if path := getenv(libraryEnv); path != "" {
		return []string{path}
	}
	var all []string
	in := func(dirs ...string) {
		for _, dir := range dirs {
			found, err := glob(dir)
			if err != nil || !filepath.IsAbs(dir) {
				continue // a root with brackets in its name is no pattern
			}
			for _, d := range found {
				for _, name := range names(l, getenv) {
					all = append(all, filepath.Join(d, name))
				}
			}
		}
	}
	// Programs of a prefix are in its bin.
	under := func(prefixes ...string) {
		for _, p := range prefixes {
			// The last is Intel's.
			in(filepath.Join(p, "lib"), filepath.Join(p, "lib64"), filepath.Join(p, "lib/release"))
		}
	}
	if launches(filepath.Base(launcher)) {
		under(filepath.Dir(filepath.Dir(launcher)))
	}
	under(getenv("OPAL_PREFIX"), getenv("I_MPI_ROOT"), getenv("MPI_HOME"))
	for _, dir := range filepath.SplitList(getenv("PATH")) {
		mpiexec := filepath.Join(dir, "mpiexec")
		if found, err := glob(mpiexec); err != nil || len(found) == 0 || !filepath.IsAbs(dir) {
			continue
		}
		under(filepath.Dir(dir))
		if to, err := follow(mpiexec); err == nil {
			under(filepath.Dir(filepath.Dir(to)))
		}
		break
	}
	all = append(all, names(l, getenv)...)
	under(getenv("VIRTUAL_ENV"), getenv("CONDA_PREFIX"))
	multiarch := "/usr/lib/" + map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH] + "-linux-gnu"
	in(multiarch, multiarch+"/openmpi/lib", "/usr/lib64/openmpi/lib", "/usr/lib64/mpich/lib", "/usr/local/lib",
		"/opt/openmpi/lib", "/opt/amazon/openmpi*/lib", "/opt/cray/pe/mpich/*/ofi/gnu/*/lib-abi-mpich")
	return all
}

// launches is true of the programs that start ranks. A shell or a wrapper may stand between, and says nothing.
func launches(program string) bool {
	for _, name := range []string{"prte", "orted", "mpiexec", "mpirun", "hydra_"} {
		if strings.HasPrefix(program, name) {
			return true
		}
	}
	return false
}
