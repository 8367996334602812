package agentstream

import (
	"errors"
	"strings"
)

// splice is one step of making a text of a former one, both taken in words: words are kept, then words are dropped, then text comes in.
// After the last step the rest is kept.
type splice struct {
	Keep int    `json:"keep,omitempty"`
	Drop int    `json:"drop,omitempty"`
	Text string `json:"text,omitempty"`
}

// difference returns the steps that make one text of another. They are few when words were added or removed here and there, as in lists of
// members; when much has moved they may be longer than the text.
func difference(before, after string) []splice {
	old, next := words(before), words(after)
	// A word that occurs once in the former text tells where the new one goes on in it.
	at := map[string]int{}
	for i, word := range old {
		if _, again := at[word]; again {
			i = -1
		}
		at[word] = i
	}
	var steps []splice
	var step splice
	var coming strings.Builder
	kept := 0
	end := func(drop int) {
		if drop > 0 || coming.Len() > 0 {
			step.Drop, step.Text = drop, coming.String()
			steps = append(steps, step)
			step = splice{}
			coming.Reset()
		}
	}
	for _, word := range next {
		where, known := at[word]
		switch {
		case kept < len(old) && old[kept] == word:
			end(0)
			step.Keep++
			kept++
		case known && where > kept:
			end(where - kept)
			step.Keep++
			kept = where + 1
		default:
			coming.WriteString(word)
		}
	}
	end(len(old) - kept)
	return steps
}

var errSplice = errors.New("a change does not fit the text that it is a change of")

// spliced carries out the steps of difference.
func spliced(before string, steps []splice) (string, error) {
	old := words(before)
	var b strings.Builder
	for _, step := range steps {
		if step.Keep < 0 || step.Drop < 0 || step.Keep > len(old) || step.Drop > len(old)-step.Keep {
			return "", errSplice
		}
		for _, word := range old[:step.Keep] {
			b.WriteString(word)
		}
		old = old[step.Keep+step.Drop:]
		b.WriteString(step.Text)
	}
	for _, word := range old {
		b.WriteString(word)
	}
	return b.String(), nil
}

// words cuts a text after each space and line end.
func words(text string) []string {
	var all []string
	for len(text) > 0 {
		end := strings.IndexAny(text, " \n") + 1
		if end == 0 {
			end = len(text)
		}
		all, text = append(all, text[:end]), text[end:]
	}
	return all
}
