// Names of options that there are not: misspelled, removed, or no flags any more.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "forebay/train/options/option_table.h"

namespace forebay {

// "; did you mean '--batch'?" for a misspelled name, or "" if nothing is near.
std::string DidYouMean(std::string_view name, const std::vector<std::string>& known,
                       std::string_view prefix);
// What to do instead of giving an option that was removed; "": there never was one of that name.
// Hyphens count as underscores.
std::string InsteadOfOption(std::string_view name);

// The problem with a key of a configuration. `said`: the key as it is written, `name`: the option.
std::string UnknownKey(std::string_view said, std::string_view name);
// The problem with a flag that there is not ("--bacth=4"), or that became an argument.
std::string UnknownFlag(const std::string& flag);

// Calls `set` for each argument in the text of `flag`, one of ArgsFlag: "betas=0.9,0.95,eps=1e-6".
// A comma separates two arguments if a name and "=" follow it, or the name of a switch. Returns
// what is wrong with the text, after which nothing more was set; "": nothing.
std::string ForEachArgument(std::string_view flag, std::string_view text,
                            absl::FunctionRef<void(const OptionSpec&, std::string_view)> set);

}  // namespace forebay
