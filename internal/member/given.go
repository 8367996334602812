package member

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
)

// givenJobs remembers, beyond the life of the node agent, which run of a job was given to which instance of the member agent, so that
// none is ever started twice. The file lives as long as the member: lines "RUN INSTANCE", appended. It is not synced, since a
// crash of the machine ends the member too.
type givenJobs struct {
	mu        sync.Mutex
	file      *os.File
	instances map[string]string
}

func openGivenJobs(path string) (*givenJobs, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the list of jobs given to a member can't be opened: %w", err)
	}
	data, err := io.ReadAll(file)
	if err == nil {
		// An unfinished last line was never given out: the write comes first.
		data = data[:bytes.LastIndexByte(data, '\n')+1]
		err = errors.Join(file.Truncate(int64(len(data))), seekTo(file, int64(len(data))))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the list of jobs given to a member can't be read: %w", err), file.Close())
	}
	g := &givenJobs{file: file, instances: map[string]string{}}
	for line := range strings.Lines(string(data)) {
		if id, instance, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " "); ok {
			g.instances[id] = instance
		}
	}
	return g, nil
}

func seekTo(file *os.File, offset int64) error {
	_, err := file.Seek(offset, io.SeekStart)
	return err
}

// claim returns the instance that has the run: the one it was given to before, else this one, from now on.
func (g *givenJobs) claim(runID, instance string) (string, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if owner, ok := g.instances[runID]; ok {
		return owner, nil
	}
	if runID == "" || strings.ContainsAny(runID, " \n") {
		return "", fmt.Errorf("%q is not the ID of a job's run", runID)
	}
	line := runID + " " + instance + "\n"
	n, err := g.file.WriteString(line)
	if err != nil {
		// A part of the line would spoil the next one.
		end, seekErr := g.file.Seek(int64(-n), io.SeekCurrent)
		return "", errors.Join(err, seekErr, g.file.Truncate(end))
	}
	g.instances[runID] = instance
	return instance, nil
}

func (g *givenJobs) Close() error { return g.file.Close() }
