package bootapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/nearmetal/nearmetal/internal/machine/boot"
)

// What machines say is stored, logged and shown, and a machine may say anything: without these bounds one report could be too large to be
// stored, and the machine would stay in its phase for ever; and strangers could fill the store.
const (
	maxHelloBytes = 64 << 10
	maxStageBytes = 64 << 10
	// maxReportBytes is of an inspection report as it is stored; large servers need a tenth.
	maxReportBytes = 256 << 10
	// maxTextBytes is of a problem or a message.
	maxTextBytes = 1 << 10
	maxHealth    = 100
	// maxCandidates and maxStrangers bound how many unknown machines are kept, stored and in memory.
	maxCandidates = 1024
	maxStrangers  = 1024
	// maxProblems is how many complaints wait to be logged.
	maxProblems = 100
)

// clip makes of a machine's words a line that can be stored and shown.
func clip(text string) string {
	text = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsGraphic(r) {
			return ' '
		}
		return r
	}, text)
	if len(text) <= maxTextBytes {
		return text
	}
	end := maxTextBytes
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + " ..."
}

// bounded is a report whose texts can be stored and shown; the error tells that it is too large.
func bounded(report boot.Report) (boot.Report, error) {
	if len(report.Health) > maxHealth {
		return report, refuse(http.StatusRequestEntityTooLarge, "the report has %d health checks; at most %d are possible", len(report.Health), maxHealth)
	}
	for i := range report.Health {
		report.Health[i].Check, report.Health[i].Message = clip(report.Health[i].Check), clip(report.Health[i].Message)
	}
	data, err := json.Marshal(report)
	if err != nil {
		return report, fmt.Errorf("measure a report: %w", err)
	}
	if len(data) > maxReportBytes {
		return report, refuse(http.StatusRequestEntityTooLarge, "the report has %d bytes; at most %d are possible", len(data), maxReportBytes)
	}
	return report, nil
}
