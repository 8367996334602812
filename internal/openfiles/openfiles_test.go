package openfiles

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheProcessWithAnOpenFileIsNamed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, err := os.Create(filepath.Join(dir, "held"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	own := fmt.Sprintf("(PID %d)", os.Getpid())
	if text := Text([]int{os.Getpid(), 1 << 30}, dir, "member c-0"); !strings.Contains(text, dir+" are still open in member c-0 by ") || !strings.Contains(text, own) {
		t.Errorf("the text is %q, want it to name %s", text, own)
	}
	if by := By([]int{os.Getpid()}, dir+"x"); by != "" {
		t.Errorf("%s has files of a directory open that it does not know", by)
	}
	if text := Text(nil, dir, "member c-0"); strings.Contains(text, " by ") {
		t.Errorf("the text of nobody is %q", text)
	}
}
