package study

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/internal/measure"
)

// record is a file of runs, one JSON object a line. The first line says of which study they are.
type record[R any] struct {
	file *os.File
	runs []R
}

// openRecord opens the record of a study in its directory: head tells studies apart. A line that was cut off when the study was stopped is taken away.
func openRecord[R any](dir string, head any) (*record[R], error) {
	path := filepath.Join(dir, "runs.jsonl")
	want, err := json.Marshal(head)
	if err != nil {
		return nil, err
	}
	r := &record[R]{}
	whole, err := r.read(path, string(want))
	if err != nil {
		return nil, err
	}
	if r.file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644); err != nil {
		return nil, err
	}
	if err = r.file.Truncate(whole); err == nil {
		_, err = r.file.Seek(whole, 0)
	}
	if err == nil && whole == 0 {
		err = r.write(want)
	}
	if err != nil {
		return nil, errors.Join(err, r.file.Close())
	}
	return r, nil
}

// read reads the runs of a file, and returns how many of its bytes are whole lines.
func (r *record[R]) read(path, want string) (whole int64, err error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer func() { _ = file.Close() }()
	lines := bufio.NewReader(file)
	for n := 0; ; n++ {
		line, err := lines.ReadString('\n')
		if err != nil { // the end, before which there may be a part of a line
			return whole, nil
		}
		if n == 0 && line != want+"\n" {
			return 0, fmt.Errorf("%s holds runs of another study: %sname another directory, or remove it", path, line)
		}
		if n > 0 {
			var run R
			if err := json.Unmarshal([]byte(line), &run); err != nil {
				return 0, fmt.Errorf("%s, line %d: %w", path, n+1, err)
			}
			r.runs = append(r.runs, run)
		}
		whole += int64(len(line))
	}
}

func (r *record[R]) has(is func(R) bool) bool { return slices.ContainsFunc(r.runs, is) }

// add keeps a run, on disk before it returns.
func (r *record[R]) add(run R) error {
	data, err := json.Marshal(run)
	if err != nil {
		return err
	}
	r.runs = append(r.runs, run)
	return r.write(data)
}

func (r *record[R]) write(line []byte) error {
	if _, err := r.file.Write(append(line, '\n')); err != nil {
		return err
	}
	return r.file.Sync()
}

func (r *record[R]) close() error { return r.file.Close() }

// writeReport writes report.json and report.html into the directory of a study.
func writeReport(dir, title string, report measure.Report) error {
	data, err := os.Create(filepath.Join(dir, "report.json"))
	if err != nil {
		return err
	}
	if err = errors.Join(report.WriteJSON(data), data.Close()); err != nil {
		return err
	}
	page, err := os.Create(filepath.Join(dir, "report.html"))
	if err != nil {
		return err
	}
	return errors.Join(measure.WriteHTML(page, title, time.Now(), report), page.Close())
}
