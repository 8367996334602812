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

// Part is the Nth of Of equal parts, counted from 1. The zero value is the whole; N is 0 for nothing.
type Part struct{ N, Of int }

// ParsePart reads "all", "none", or a part such as "2/3", the second of three.
func ParsePart(text string) (Part, error) {
	switch text {
	case "all":
		return Part{}, nil
	case "none":
		return Part{0, 1}, nil
	}
	number, of, _ := strings.Cut(text, "/")
	n, errN := strconv.Atoi(number)
	parts, errOf := strconv.Atoi(of)
	if errN != nil || errOf != nil || n < 1 || parts < n {
		return Part{}, fmt.Errorf("%q is not a part; write all, none, or a part such as 2/3, the second of three equal parts", text)
	}
	return Part{n, parts}, nil
}

// String returns the text that ParsePart reads.
func (p Part) String() string {
	switch {
	case p.Of == 0:
		return "all"
	case p.N == 0:
		return "none"
	}
	return fmt.Sprintf("%d/%d", p.N, p.Of)
}

// Has reports whether this part has the n-th of several things, from 0, which go to the parts in turn.
func (p Part) Has(n int) bool {
	return p.Of == 0 || p.N > 0 && n%p.Of == p.N-1
}

// of returns this part of a count. The parts of a count differ by at most one, and their sum is the count.
func (p Part) of(count int64) int64 {
	switch {
	case p.Of == 0:
		return count
	case p.N == 0:
		return 0
	}
	return count*int64(p.N)/int64(p.Of) - count*int64(p.N-1)/int64(p.Of)
}

// hugePageSizes are those that members can have.
func hugePageSizes() []int64 { return []int64{2 << 20, 1 << 30} }

// readHugePages finds the huge pages that each memory node has reserved, and offers the given part of them. All of them are subtracted from the
// node's ordinary memory (Linux, Documentation/admin-guide/mm/hugetlbpage.rst).
func readHugePages(root string, nodes []api.NUMANode, offered Part) error {
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
			n.MemoryBytes = max(0, n.MemoryBytes-pages*size)
			if own := offered.of(pages); own > 0 {
				n.HugePages = append(n.HugePages, api.HugePages{PageBytes: size, Bytes: own * size})
			}
		}
	}
	return nil
}

// FreeHugePages returns how many huge pages of a size no process holds or has reserved.
func FreeHugePages(root string, pageBytes int64) (int64, error) {
	dir := filepath.Join(root, fmt.Sprintf("sys/kernel/mm/hugepages/hugepages-%dkB", pageBytes>>10))
	free, err := readCount(filepath.Join(dir, "free_hugepages"))
	reserved, reservedErr := readCount(filepath.Join(dir, "resv_hugepages"))
	return free - reserved, errors.Join(err, reservedErr)
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
