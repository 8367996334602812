package build

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

func TestWhatABuildRunsCannotSpeakForIt(t *testing.T) {
	null, err := os.OpenFile("/dev/null", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	// As the builder passes it: open over exec.
	fd, err := unix.FcntlInt(null.Fd(), unix.F_DUPFD, 50)
	if err != nil {
		t.Fatal(err)
	}
	words := wordsTo(fd)
	defer words.Close()
	if out, err := exec.Command("/bin/bash", "-c", fmt.Sprintf("echo x >&%d", fd)).CombinedOutput(); err == nil {
		t.Errorf("a program that a build runs wrote to the builder: %s", out)
	}
	if _, err := words.WriteString("x"); err != nil {
		t.Error(err)
	}
}
