package mpi

import (
	"fmt"
	"strings"
)

// table has the values of a binary interface that are not the same in the others. Communicators, types, error handlers
// and infos are addresses or numbers, and both travel as a machine word.
type table struct {
	name         string
	world        uintptr // MPI_COMM_WORLD
	byte         uintptr // MPI_BYTE
	errorsReturn uintptr // MPI_ERRORS_RETURN
	infoNull     uintptr // MPI_INFO_NULL
	shared       int32   // MPI_COMM_TYPE_SHARED
	serialized   int32   // MPI_THREAD_SERIALIZED; less is a smaller number in each interface
}

var mpichTable = table{name: "MPICH's", world: 0x44000000, byte: 0x4c00010d, errorsReturn: 0x54000001,
	infoNull: 0x1c000000, shared: 1, serialized: 2}

var forumTable = table{name: "the MPI Forum's", world: 0x101, byte: 0x247, errorsReturn: 0x143, infoNull: 0x130,
	shared: 221, serialized: 2048}

// openMPITable has the handles that are addresses of the library's variables; symbol finds these.
func openMPITable(symbol func(string) (uintptr, bool)) (table, error) {
	t := table{name: "Open MPI's", shared: 0, serialized: 2}
	for name, handle := range map[string]*uintptr{"ompi_mpi_comm_world": &t.world, "ompi_mpi_byte": &t.byte,
		"ompi_mpi_errors_return": &t.errorsReturn, "ompi_mpi_info_null": &t.infoNull} {
		var ok bool
		if *handle, ok = symbol(name); !ok {
			return table{}, fmt.Errorf("it says that it is Open MPI and lacks %s: install Open MPI 4 or 5", name)
		}
	}
	return t, nil
}

// chooseTable finds a library's interface. version is the text of MPI_Get_library_version; abi is the major version
// that MPI_Abi_get_version gives, -1 for a library that has another interface than the Forum's, and 0 for one that
// lacks the function.
func chooseTable(version string, abi int32, symbol func(string) (uintptr, bool)) (table, error) {
	switch {
	case abi == 1:
		return forumTable, nil
	case abi > 1:
		return table{}, fmt.Errorf("it has version %d of the MPI Forum's ABI, and this program knows version 1: "+
			"install a library with that one, Open MPI 5, or MPICH 5", abi)
	case isOpenMPI(version):
		return openMPITable(symbol)
	}
	for _, follower := range []string{"MPICH", "Intel(R) MPI", "MVAPICH"} { // "CRAY MPICH" has the first one's name
		if strings.Contains(version, follower) {
			return mpichTable, nil
		}
	}
	return table{}, fmt.Errorf("it says that it is %q, whose interface this program does not know: use Open MPI 4 or "+
		"5, MPICH, or a library with the MPI Forum's ABI", firstLine(version))
}

func isOpenMPI(version string) bool { return strings.HasPrefix(version, "Open MPI") }

// fits says why a library of that version cannot talk to the launcher; nil if it can. srun and PMIx serve both kinds.
func fits(l Launcher, version string) error {
	if l == OpenMPI && !isOpenMPI(version) || l == Hydra && isOpenMPI(version) {
		return fmt.Errorf("it is %s, which cannot join the ranks of %s", firstLine(version), l)
	}
	return nil
}

// firstLine is the library's name and version, on a line: "Open MPI v5.0.11", "MPICH Version: 5.0.2".
func firstLine(version string) string {
	line, _, _ := strings.Cut(version, "\n")
	line, _, _ = strings.Cut(line, ",")
	return strings.Join(strings.Fields(line), " ")
}
