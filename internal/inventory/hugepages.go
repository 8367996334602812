package inventory

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// hugePageSizes are those that members can have.
func hugePageSizes() []int64 { return []int64{2 << 20, 1 << 30} }

// readHugePages finds the huge pages that are set aside on each memory node, and takes them off its memory (Linux, Documentation/admin-guide/mm/hugetlbpage.rst).
func readHugePages(root string, nodes []api.NUMANode) error {
	for i := range nodes {
		n := &nodes[i]
		dir := filepath.Join(root, fmt.Sprintf("sys/devices/system/node/node%d/hugepages", n.ID))
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) && len(nodes) == 1 { // a kernel without NUMA
			dir = filepath.Join(root, "sys/kernel/mm/hugepages")
		}
		for _, size := range hugePageSizes() {
			pages, err := readCount(filepath.Join(dir, fmt.Sprintf("hugepages-%dkB/nr_hugepages", size>>10)))
			if err != nil {
				return err
			}
			if pages > 0 {
				n.HugePages = append(n.HugePages, api.HugePages{PageBytes: size, Bytes: pages * size})
				n.MemoryBytes = max(0, n.MemoryBytes-pages*size)
			}
		}
	}
	return nil
}

// readCount reads a number from a file of the kernel's; 0 where there is none.
func readCount(path string) (int64, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return n, nil
}
